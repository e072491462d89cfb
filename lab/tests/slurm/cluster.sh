#!/usr/bin/env bash
# A real SLURM cluster of one node, this machine, with all of its files in one folder.
#
#   tests/slurm/cluster.sh start FOLDER   then: export SLURM_CONF=FOLDER/slurm.conf PATH=FOLDER/bin:$PATH
#   tests/slurm/cluster.sh stop FOLDER
#
# Needs root. Installs Debian's slurm-wlm and munge where they are missing. Exits 77, with the reason on stderr,
# where such a cluster cannot run. The partition `low` is preempted by `high`, as on a shared cluster.
set -euo pipefail

cannot() { echo "no SLURM here: $*" >&2; exit 77; }

start() {
  [ "$(uname -s)" = Linux ] || cannot "it needs Linux"
  [ "$(id -u)" = 0 ] || cannot "it needs root, to start munged, slurmctld and slurmd"
  if ! command -v slurmctld slurmd munged sbatch >/dev/null; then
    command -v apt-get >/dev/null || cannot "slurm-wlm and munge are not installed, and there is no apt-get"
    (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq slurm-wlm munge) \
      >/dev/null 2>&1 || cannot "apt-get could not install slurm-wlm and munge"
  fi
  local folder=$1 host cpus memory
  host=$(hostname -s) cpus=$(getconf _NPROCESSORS_ONLN)  # nproc would heed OMP_NUM_THREADS
  memory=$(awk '/MemTotal/ {print int($2 / 1024)}' /proc/meminfo)
  getent hosts "$host" >/dev/null || echo "127.0.0.1 $host" >>/etc/hosts
  mkdir -p "$folder"/{state,spool,munge}
  chmod 755 "$folder"

  if [ ! -f /etc/munge/munge.key ]; then mungekey --create; fi
  chown munge:munge "$folder/munge"
  runuser -u munge -- munged --socket="$folder/munge/socket" --pid-file="$folder/munge/pid" \
    --log-file="$folder/munge/log" --seed-file="$folder/munge/seed" \
    || cannot "munged did not start"

  # cred_expire is also how long a requeued job waits before it starts again: 2 minutes unless told.
  cat >"$folder/slurm.conf" <<CONF
ClusterName=one
SlurmctldHost=$host
SlurmUser=root
SlurmdUser=root
SlurmctldPort=26817
SlurmdPort=26818
AuthInfo=socket=$folder/munge/socket,cred_expire=5
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=1,sched_interval=2,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
KillWait=5
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
NodeName=$host CPUs=$cpus RealMemory=$memory State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=10
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF
CONF
  # submitit asks `sacct` how jobs ended, which needs a database; the controller remembers that much.
  mkdir -p "$folder/bin"
  cat >"$folder/bin/sacct" <<'SACCT'
#!/usr/bin/env bash
echo "JobID|State|NodeList"
scontrol --oneliner show jobs | awk '{
  split("", job)
  for (i = 1; i <= NF; i++) { at = index($i, "="); job[substr($i, 1, at - 1)] = substr($i, at + 1) }
  id = ("ArrayTaskId" in job) ? job["ArrayJobId"] "_" job["ArrayTaskId"] : job["JobId"]
  if (job["JobState"] != "") print id "|" job["JobState"] "|" job["NodeList"]
}'
SACCT
  chmod +x "$folder/bin/sacct"
  export SLURM_CONF=$folder/slurm.conf
  slurmctld && slurmd || { stop "$folder"; cannot "slurmctld and slurmd did not start"; }
  for _ in $(seq 60); do
    if sinfo --noheader --format=%T 2>/dev/null | grep -q idle; then return; fi
    sleep 0.5
  done
  tail -n 5 "$folder/slurmctld.log" "$folder/slurmd.log" >&2
  stop "$folder"
  cannot "its node did not come up"
}

stop() {
  local folder=$1 pid
  for pid in "$folder"/slurmd.pid "$folder"/slurmctld.pid "$folder"/munge/pid; do
    if [ -f "$pid" ]; then kill "$(cat "$pid")" 2>/dev/null || true; fi
  done
}

case ${1:-} in
  start | stop) "$1" "$(mkdir -p "$2" && realpath "$2")" ;;
  *) echo "usage: $0 start|stop FOLDER" >&2; exit 2 ;;
esac
