#!/usr/bin/env bash
# N copies of one command on this machine, as if they were N hosts: CPU devices, collectives over the loopback.
#   launch/local_pod.sh N [--restarts=R] [--restart-with=M] [--grace=S] [--dry-run] -- COMMAND...
# Output lines begin with "[process] ". Exit code: 0 all finished; 2 a mistake, 3 diverged (never restarted); 75 stopped
# with everything saved; 1 anything else. When one process ends badly the others get S seconds (30), then are killed, and
# all start again: R times at most, on M processes. SIGTERM, SIGINT, SIGHUP go to all, and then nothing restarts.
set -u && exec 8>&2
restarts=0 restart_with='' grace=30 dry='' signal='' again='' pids=() codes=() groups=''
say() { echo "local_pod: $*" >&8; }
mistake() { say "$1" && sed -n '3s/^# *//p' "$0" >&2 && exit 2; }
number() { [[ $2 =~ ^(0|[1-9][0-9]{0,5})$ && $2 -ge $3 ]] || mistake "$1 is '$2', expected a number, $3 or more"; }
((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 404)) || mistake "needs bash 4.4 or newer, this is $BASH_VERSION"
n=${1-} && number N "$n" 1
while shift && [ "${1---}" != -- ]; do # an absent word ends the flags too
  case $1 in
    --restarts=*) restarts=${1#*=} && number --restarts "$restarts" 0 ;;
    --restart-with=*) restart_with=${1#*=} && number --restart-with "$restart_with" 1 ;;
    --grace=*) grace=${1#*=} && number --grace "$grace" 0 ;;
    --dry-run) dry=1 ;;
    *) mistake "unknown flag $1" ;;
  esac
done
shift $(($# > 0)) && [ -z "$(command -v "${1-}")" ] && mistake "there is no command '${1-}'; it follows --"

label() { # process: its lines, with its number; outlives the signals, so that last words are heard
  trap '' TERM INT HUP && exec 8>&- 9>&-
  while IFS= read -r line || [ -n "$line" ]; do
    [[ $line == "[Gloo] Rank "* ]] || printf '[%s] %s\n' "$1" "$line"
  done
}
each() { for pid in "${pids[@]}"; do kill -s "$1" -- "-$pid" 2>/dev/null; done; }
# shellcheck disable=SC2329 # called by the traps
forward() { say "SIG$1 goes to all processes" && each "${again:-$1}" && signal=$1 again=KILL; } # the second kills
trap 'forward TERM' TERM && trap 'forward INT' INT && trap 'forward HUP' HUP
# Whatever ends this script, kill -9 too, closes descriptor 9: the guard then kills the groups that it was told of.
guard() {
  trap '' TERM INT HUP && exec >/dev/null 2>&1 8>&- && while read -r group; do groups=${group:+$groups -$group}; done
  eval "${groups:+kill -KILL -- $groups}"
}
exec 9> >(guard)
pod() { # starts all processes and waits for all; fills `codes`
  local i id deadline='' out err labels=() place
  while port=$((20000 + RANDOM % 12000)) && (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done # a free one
  for ((i = 0; i < n; i++)); do
    place=("T2T_NUM_PROCESSES=$n" "T2T_PROCESS_ID=$i" "JAX_COORDINATOR_ADDRESS=127.0.0.1:$port" PYTHONUNBUFFERED=1
      "JAX_PLATFORMS=${JAX_PLATFORMS:-cpu}" "no_proxy=${no_proxy:+$no_proxy,}127.0.0.1,localhost")
    [ -z "$dry" ] || { printf '%q ' env "${place[@]}" "$@" && echo && codes=(0) && continue; }
    [ -z "$signal" ] || break
    exec {out}> >(label "$i") && labels+=($!) && exec {err}> >(label "$i" >&2) && labels+=($!)
    set -m # a group for each
    env "${place[@]}" "$@" </dev/null >&"$out" 2>&"$err" 8>&- 9>&- {out}>&- {err}>&- &
    set +m && pids[i]=$! && echo $! >&9 && exec {out}>&- {err}>&-
  done
  [ -z "$signal" ] || each "$signal" # for the one that was just starting
  while sleep 0.1; ((${#pids[@]})); do # Ctrl-C ends the sleep, not the loop
    for i in "${!pids[@]}"; do
      id=${pids[i]} && kill -0 "$id" && continue
      wait "$id"; codes[i]=$?
      kill -KILL -- "-$id" # what the process left behind
      unset "pids[i]"
      ((codes[i] == 0)) && continue
      say "process $i of $n ended with exit code ${codes[i]}"
      : "${deadline:=$((SECONDS + (codes[i] == 2 && grace > 5 ? 5 : grace)))}"
    done
    ((${#pids[@]} && SECONDS > ${deadline:-SECONDS})) && say "killing the rest: ${!pids[*]}" && each KILL
  done 2>/dev/null # bash's own notes about jobs
  for i in {1..20}; do kill -0 "${labels[@]-none}" 2>/dev/null && sleep 0.1; done
  echo >&9
}

for ((attempt = 1; ; attempt++)); do
  pids=() codes=() && pod "$@"
  [[ ${codes[*]-none} =~ [^0\ ] ]] || exit 0
  case " ${codes[*]-} " in *\ 2\ * | *\ 126\ * | *\ 127\ *) exit 2 ;; *\ 3\ *) exit 3 ;; esac # 126, 127: no command
  if [ -n "$signal" ] || ((attempt > restarts)); then break; fi
  n=${restart_with:-$n} && say "restart $attempt of $restarts, with $n processes"
done
[[ ${codes[*]-none} =~ ^(0|75)(\ (0|75))*$ ]] && exit 75
exit 1
