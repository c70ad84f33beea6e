#!/busybox sh
# The guest's first program. It makes the root: the machine's own, over 9p and
# read-only, above it packages, above them a tmpfs.
b=/busybox
$b mkdir -p /proc /sys /dev /low/host /low/layer /low/kernel /rw /root
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs dev /dev
for m in /modules/*.ko; do $b insmod $m; done
for tag in host layer kernel; do
	$b mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=262144,cache=loose $tag /low/$tag || $b poweroff -f
done
$b mount -t tmpfs rw /rw
$b mkdir /rw/upper /rw/work
$b mount -t overlay -o lowerdir=/low/kernel:/low/layer:/low/host,upperdir=/rw/upper,workdir=/rw/work root /root || $b poweroff -f
for d in proc sys dev; do $b mount --move /$d /root/$d; done
$b cat /busybox >/root/busybox
$b chmod 755 /root/busybox
exec $b switch_root /root /bin/sh -c '
	export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
	stty -opost
	mkdir -p /lab
	mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 lab /lab &&
		mkdir -p /dev/shm /dev/pts &&
		mount -t devpts devpts /dev/pts &&
		mount -t cgroup2 cgroup2 /sys/fs/cgroup &&
		{ test -e /dev/fuse || modprobe fuse; } &&
		chmod 666 /dev/fuse &&
		sh /lab/start
	echo $? >/lab/status
	sync
	exec /busybox poweroff -f
' </dev/console >/dev/console 2>&1
