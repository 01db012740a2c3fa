//! Other daemons for the same tests: `JIG_TEST_RECYCLE`.

use std::env;

use jig::api::v1::RunRequest;

use super::{Daemon, Setup, call::shell};

/// What hostile commands leave, and what they try without a trace. A sandbox is used again after the
/// second.
const HOSTILE_SCRIPTS: [&str; 2] = [
    "touch /tmp/left /dev/shm/left ~/left; chmod 777 /tmp; mkfifo /tmp/f; (cat /tmp/f &)
     (trap '' TERM INT HUP; setsid sleep 1000 &); exec 9>&1 1<&- 2<&-; kill -STOP 1; kill -9 $$",
    "kill -9 1; kill -STOP -1; kill -CONT -1; renice -n 19 -p 1; umask 0; ulimit -n 10; trap '' TERM
     for p in /proc/[0-9]*; do echo x >$p/mem; echo x >$p/comm; echo 1 >$p/oom_score_adj; done; true",
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
