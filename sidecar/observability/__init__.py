"""The data that operators read: metrics, traces and logs.

metrics         every series, and the methods that update them
registry        the numbers of one series
tool_labels     the values of the label `tool`
exposition      the series in the formats that Prometheus scrapes
worker_series   the series of several workers as one
telemetry       OpenTelemetry: traces, and metrics by OTLP
otlp_metrics    the series as OTLP
log_lines       the lines of the operator's log
outage_log      the beginning and the end of an outage in that log
"""
