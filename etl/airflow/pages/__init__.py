"""The Data quality pages inside Airflow's UI: drawn by the server, with no script and no outside host.

    app       routes, behind Airflow's own sign-in and each DAG's own permission
    pages     one function a page: a cursor in, HTML out; knows nothing of Airflow
    records   what the pages' statements return
    deciding  what a person may do about held rows, stopped batches and alerts; they alone change anything

The other modules are what a page is made of, and import neither FastAPI nor Airflow, but for `answers`.
"""
