"""Jobs, schedules, sensors and deployments of the code location, and its entry in `pipelines.definitions`."""
