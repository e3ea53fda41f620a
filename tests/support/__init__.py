"""Share what several test files need. The list is closed: tests/unit/test_shape.py holds it against the folder.

airflow         a whole Airflow, the browser that looks at its pages, what listens to its alerts, and operators without it
arrow_driver    drives the real stage and commit from Arrow batches, without Spark
asked           counts what PostgreSQL and S3 are asked, by proxies before them
backups         databases that go back in time
catalog         the Iceberg catalog, opened by what `sluice env` prints
commands        the command `sluice` in the test's own process, over its Spark
compose         docker-compose.yml's set as processes of this machine
data            what lands, and what must become of it
databases       a database for each test, cloned from a migrated one, and a folder on S3
delivering      a pipeline that is delivered to batch by batch, without Spark
documented      the pages of the documentation, their code blocks, and what recipes say becomes of a file
environment     where the repository is, and what of the caller's environment tests must not see
events_run      a run of one pipeline, and what may come between its steps
followed        a run that stays up, in a thread
forked          commands and runs in processes forked from one that has imported what they need
histories       deliveries that are made once, and put back for each test that begins from them
home            a user's own folders, and runs over them
hostile_json    JSON records that parsers disagree about
imported        what that process has imported
kafka           a real broker, a bad network before it, and topics as other programs fill them
killed          runs and deliveries in processes that are killed at a step
ledger_rows     deliveries that nobody made, for what looks at the ledger alone
listed          which folders this process lists
live_sources    a rate's and a socket's pipeline, and the server that the socket reads
model           the model of the delivery protocol
oracle          reads both sinks, sharing no code with `etl`
pages           data quality pages as tests draw and read them
parts           files, and the parts of them that tasks read
postgres_proxy  cuts a connection to PostgreSQL at its COMMIT
processes       asks processes that may end meanwhile
prometheus      a real Prometheus, and what the dashboard asks it
protocol_steps  the steps of a delivery, before its commit and after
quality         Great Expectations by itself, drawn suites, and the pass in plain Python
reading         reads landed files by a stream, and takes apart what each batch gave
receivers       take over HTTP what others are told
s3_home         a user's folders whose landing and checkpoints are on S3
source_kinds    the tests that every kind of source takes over
told            what people were told of a pipeline
waiting         waits for what another process or thread brings about
"""
