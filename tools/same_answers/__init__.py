"""The same questions to two checkouts: do they still answer alike? (``make same-answers BASE=COMMIT``)"""
