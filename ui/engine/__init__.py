"""From a request to results, without a component: models in memory, the calls, the wire format, running jobs."""
