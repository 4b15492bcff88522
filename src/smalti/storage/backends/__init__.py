"""Clients of stores: one module per client library, whose functions `FsspecStore` and the opening of addresses call.

| function | returns |
| --- | --- |
| `make(options)` | a file system of fsspec; may block while its client looks for credentials |
| `parse_address(scheme name, host, prefix, options)` | an `Address`, without a request; the host may contain a user |
| `fill_options(scheme name, root, options)` | options completed when the store is made, before it is pickled |
| `make_reader(options, connection, timeout)` | a `Reader`, which connects on its first use |
| `server_of(root, options)` | the URL of the server, without a request, for diagnosis |
| `login_source(scheme name, options)` | the source of the credentials, without secrets; "" if none is found |
| `option_names()` | the names of all options that the library takes; imports it |

Only `make` is required. Not here: which module belongs to which scheme, and what else is known about it
(`smalti.storage.schemes`), retries and deadlines (`smalti.storage.object_store`), Databricks
(`smalti.storage.databricks`). Read `memory` first, the shortest, then `s3`.
"""
