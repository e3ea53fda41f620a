"""The Data quality pages inside Airflow's UI: read only, drawn by the server, with no script and no outside host.

    app       routes, behind Airflow's own sign-in and each DAG's own permission
    pages     one function a page: a cursor in, HTML out; knows nothing of Airflow
    records   what the pages' statements return
    heatmap, charts, rows, verdicts, report, formatting   what a page is made of

Only `app` imports FastAPI and Airflow.
"""
