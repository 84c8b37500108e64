"""The interfaces for operators and enforcement points: the admin API, the console, and the decision APIs.

admin_app      AdminApp: the handler of the admin listener; credentials of operators
routes         the admin API: each address, its role and its operation; operator_api, trial and comparison do the work
models         its requests and responses; openapi, their document; views and schemas, their plain values
decisions      decision APIs for other enforcement points: native and authzen
other_workers  lets workers answer as one process
console/       the web console
"""
