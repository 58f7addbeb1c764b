# Becomes systemd, on a copy of this system that is gone with it. Runs in new namespaces; $1 is an empty folder.
set -eu
folder=$1 root=$1/root
mount --make-rprivate /
mkdir "$folder/layer" "$root"
mount -t tmpfs tmpfs "$folder/layer"
mkdir "$folder/layer/upper" "$folder/layer/work"
mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/layer/upper,workdir=$folder/layer/work" "$root"
cd "$root"

mkdir said
mount --bind "$folder/said" said
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,ro,bind proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty; do
    touch "dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
mkdir dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd

# none of the services of this machine: only what the scenario starts
rm -rf etc/systemd/system/* opt/holdfast etc/holdfast
ln -s /dev/null etc/systemd/system/postgresql@.service
cp "$folder/scenario.service" etc/systemd/system/
cp -r "$folder/checkout" checkout
cp -a "$folder/holdfast" opt/holdfast
ip link set lo up

mkdir before
pivot_root . before
cd /
umount -l /before
exec env -i container=holdfast PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --system --unit=scenario.service --log-target=journal --show-status=0
