"""The interfaces for operators and enforcement points: the admin API, the console, and the decision APIs.

admin_app      AdminApp: the handler of the admin listener; credentials of operators
routes         the admin API: each address, its roles and its operation; operator_api has those of agents and schedules
models         its requests and responses; views makes responses, schemas checks requests, openapi documents both
run_stream     the events of a run
requests       reads bodies of requests, and writes responses and problem documents
decisions      decision APIs for other enforcement points: authzen, Envoy and nginx
other_workers  lets workers answer as one process
console/       the web console; access, trial and comparison compute some of its pages
"""
