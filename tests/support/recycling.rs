//! Other daemons for the same tests: `JIG_TEST_RECYCLE`. With `off`, tests that are about recycled
//! sandboxes and warm shells fail, and those that mount a small disk at `--workspace`.

use std::env;

use jig::api::v1::RunRequest;

use super::{Daemon, Setup, call::shell};

/// What hostile commands do. Some leave much, others nothing that the init sees.
pub(crate) const HOSTILE_SCRIPTS: &[&str] = &[
    "touch /tmp/left /dev/shm/left ~/left; mkdir -p /tmp/a/b/c; chmod 777 /tmp ~; ln -s / /tmp/root",
    "(setsid sleep 1000 &) ; (trap '' TERM INT HUP; setsid sleep 1000 &) ; exit 0",
    "kill -9 1; kill -STOP 1; kill -STOP -1; kill -CONT -1; renice -n 19 -p 1; true",
    "umask 0; ulimit -n 10; ulimit -u 1; trap '' TERM; set -f; exec 9>&1; cd /; true",
    "for s in $(seq 64); do kill -$s 1 2>/dev/null; done; true",
    "echo 1000 >/proc/self/oom_score_adj; echo 1 >/proc/1/oom_score_adj; echo x >/proc/1/comm; true",
    "sleep 1000 >/tmp/held & rm /tmp/held; kill -9 $$",
    "ipcmk -M 4096 -p 0666; ipcmk -Q; ipcmk -S 1; true",
    "for p in /proc/[0-9]*; do echo x >$p/mem; echo 7 >$p/autogroup; cat $p/environ; done 2>/dev/null; true",
    "exec 1<&- 2<&-; kill -SEGV $$",
    "mkfifo /tmp/f; (cat /tmp/f &); (cat </dev/zero >/dev/null &); true",
    "cp /bin/true /tmp/sh; PATH=/tmp; chmod 0 /dev/pts /dev/shm; touch -d @1 /tmp /dev/shm ~; true",
    "ulimit -v 100000; x=$(head -c 50000000 /dev/zero | tr '\\0' x); echo ${#x} >/dev/null",
    "nice -n 5 true; taskset -p 1 $$ >/dev/null; chrt --batch -p 0 $$; ionice -c 3 -p $$; true",
];

impl Setup {
    /// With `JIG_TEST_RECYCLE=off`, each run has a sandbox of its own, unless the test decides that.
    pub(super) fn with_chosen_recycling(mut self) -> Self {
        let is_off = env::var("JIG_TEST_RECYCLE").is_ok_and(|choice| choice == "off");
        let table = self.table.clone().unwrap_or_default();
        let is_decided = table.contains("recycle")
            || self
                .arguments
                .iter()
                .any(|argument| argument == "--config" || argument == "--workspace");
        if is_off && !is_decided {
            // TOML has each table once.
            self.table = Some(match table.contains("[sandbox]") {
                true => table.replace("[sandbox]", "[sandbox]\nrecycle = false"),
                false => format!("{table}\n[sandbox]\nrecycle = false"),
            });
        }
        self
    }
}

impl Daemon {
    /// With `JIG_TEST_RECYCLE=hostile`, makes hostile runs before the test's.
    pub(super) async fn make_hostile_runs(&self) {
        if env::var("JIG_TEST_RECYCLE").is_ok_and(|choice| choice == "hostile") {
            for script in HOSTILE_SCRIPTS {
                let request = RunRequest { timeout_sec: Some(5), ..shell(script) };
                // Not every test lets anybody run commands.
                let _may_fail = self.try_run(request).await;
            }
        }
    }
}
