"""What a view costs on a network volume: rates beside the volume itself, and requests.

    chrt -r 10 go run ./integration/volumes -command 'python3 bench/volumes/rates.py' gluster

Four directories take turns within each round: one on the volume, one in a view over it, and the same
two on a directory in memory. A ratio is the median of the rounds' ratios, with its quartiles, so that
what else the machine does falls on all of them. Each directory is one below its root, and nobody
else wants its files. The locks are in an embedded etcd in memory.
"""
import collections, os, re, shutil, statistics, subprocess, time

BATCH, ROUNDS, COUNTED = 10, 20, 100
client = os.environ["LOCKFS_TEST_VOLUME"].split(",")[0]
local = "/tmp/local"
os.environ["LOCKFS_STATE_DIR"] = "/dev/shm/state"


def mount(source, name):
    view = "/tmp/" + name
    os.mkdir(view)
    with open(view + ".log", "w") as log:
        p = subprocess.Popen([os.environ["LOCKFS"], "mount", "--embedded", "--name", name, source, view], stderr=log)
    deadline = time.monotonic() + 60
    while not os.path.ismount(view):
        if p.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(open(view + ".log").read())
        time.sleep(0.1)
    return p, view


def gluster_requests():
    """What the brick was asked, by `gluster volume profile`."""
    out = subprocess.run(["gluster", "--mode=script", "volume", "profile", "v", "info", "cumulative"],
                         capture_output=True, text=True, check=True).stdout
    # "%-latency Avg UNIT Min UNIT Max UNIT CALLS NAME"; the unit is us or ns.
    found = re.findall(r"^ *[\d.]+(?: +[\d.]+ [un]s){3} +(\d+) +([A-Z]+) *$", out, re.M)
    return collections.Counter({name: int(n) for n, name in found})


def juicefs_requests():
    """What the kernel asked the client."""
    with open(client + "/.stats") as f:
        found = re.findall(r"^juicefs_fuse_ops_total_(\w+) (\d+)", f.read(), re.M)
    return collections.Counter({name: int(n) for name, n in found})


def nfs_requests():
    """What the kernel's client asked the server for this mount."""
    with open("/proc/self/mountstats") as f:
        mounts = re.split(r"^device ", f.read(), flags=re.M)
    stats = next(m for m in mounts if " mounted on %s with fstype nfs" % client in m)
    found = re.findall(r"^\s+([A-Z_]+): (\d+) ", stats.partition("per-op statistics")[2], re.M)
    return collections.Counter({name: int(n) for name, n in found})


if shutil.which("gluster") and os.path.isdir("/run/gluster/vols/v"):
    requests = gluster_requests
elif os.path.exists(client + "/.stats"):
    requests = juicefs_requests
elif " mounted on %s with fstype nfs" % client in open("/proc/self/mountstats").read():
    requests = nfs_requests
else:
    requests = None


def append(d, i):
    f = os.open(d + "/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(f, b"a line of the log\n")
    os.close(f)


def append_two_directories_down(d, i):
    append(d + "/e/f", i)


def open_and_close(d, i):
    os.close(os.open(d + "/small", os.O_RDONLY))


def read(d, i):
    f = os.open(d + "/small", os.O_RDONLY)
    os.read(f, 4096)
    os.close(f)


def create(d, i):
    os.close(os.open(d + "/new%d" % i, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))


def save_by_rename(d, i):
    f = os.open(d + "/tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(f, b"x" * 4000)
    os.close(f)
    os.rename(d + "/tmp", d + "/saved")


calls = 0


def batch(op, name, n):
    """Calls op n times and returns the seconds of one."""
    global calls
    start = time.monotonic()
    for _ in range(n):
        calls += 1
        op(dirs[name], calls)
    return (time.monotonic() - start) / n


def ratios(times, a, b):
    """The times of a over those of b: the rate of b over that of a."""
    low, middle, high = statistics.quantiles([x / y for x, y in zip(times[a], times[b])], n=4)
    return "%.2f (%.2f to %.2f)" % (middle, low, high)


os.mkdir(local)
daemons = []
dirs = {"volume": client + "/bare", "local": local + "/bare"}
for source, name in ((client, "view"), (local, "local-view")):
    p, view = mount(source, name)
    daemons.append(p)
    dirs[name] = view + "/viewed"
for d in dirs.values():
    os.makedirs(d + "/e/f")
    with open(d + "/small", "w") as f:
        f.write("x" * 1000)

names = list(dirs)
for op in (append, append_two_directories_down, open_and_close, read, create, save_by_rename):
    times = collections.defaultdict(list)
    for name in names:
        batch(op, name, 3)
    for r in range(ROUNDS):
        for name in names[r % 4:] + names[:r % 4]:
            times[name].append(batch(op, name, BATCH))
    print(op.__name__)
    print("  rate, view / volume:", ratios(times, "volume", "view"))
    print("  time, local view / volume:", ratios(times, "local-view", "volume"))
    for name in ("volume", "view") if requests else ():
        batch(op, name, 3)
        time.sleep(1.5)  # locks are given back, and the lab's own requests are few
        before = requests()
        batch(op, name, COUNTED)
        time.sleep(1.5)
        asked = requests() - before
        each = ["%s %.2f" % (what, n / COUNTED) for what, n in asked.most_common() if n / COUNTED > 0.02]
        print("  requests, %s: %.1f: %s" % (name, sum(asked.values()) / COUNTED, ", ".join(each)), flush=True)

for p in daemons:
    p.terminate()
for p in daemons:
    p.wait()
