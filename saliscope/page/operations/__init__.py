"""What an administrator needs: health, metrics, logs, and a shutdown that lets running answers finish."""
