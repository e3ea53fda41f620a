import psutil, time, statistics
from tests.support.data.orders import orders
def cpu():
    me=psutil.Process(); t=me.cpu_times(); own=t.user+t.system; jvm=w=0.0
    for p in me.children(recursive=True):
        try:
            t=p.cpu_times(); v=t.user+t.system+t.children_user+t.children_system
            n=p.name()
            if n=="java": jvm+=t.user+t.system
            elif "python" in n: w+=v
        except psutil.Error: pass
    return own,jvm,w
def test_cost(home):
    home.declare(max_files=1)
    rows=[]
    for i in range(18):
        home.land(f"orders/{i}.jsonl", orders(i*10, 8, negative=[i*10+1]))
        a=cpu(); t=time.time(); home.run(); t=time.time()-t; b=cpu()
        rows.append([*(y-x for x,y in zip(a,b)), t])
    for part in (rows[5:11], rows[11:]):
        print("COST", *(f"{statistics.median(x[i] for x in part):.3f}" for i in range(4)), f"{statistics.median(sum(x[:3]) for x in part):.3f}")
