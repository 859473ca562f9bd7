"""Predicted against measured: importers of benchmark files, scores, anchors, the accuracy report."""
