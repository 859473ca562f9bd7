"""The files of models, hardware, prices and workloads, and how names become deployments."""
