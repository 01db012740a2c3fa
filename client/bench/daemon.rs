//! Starts a daemon in a process of its own for a benchmark.

#[cfg(feature = "daemon")]
pub(super) use started::Daemon;

/// Settings of a daemon to start. By default, this program with a state directory of its own.
#[derive(Debug, Clone, Default)]
#[cfg_attr(not(feature = "daemon"), expect(dead_code, reason = "no daemon is started"))]
pub(super) struct DaemonSettings {
    /// Program to start instead of this one, as `PROGRAM --listen …`.
    pub(super) program: Option<std::path::PathBuf>,
    pub(super) state_dir: Option<std::path::PathBuf>,
    /// Further text of its configuration file.
    pub(super) config: String,
    pub(super) environment: Vec<(&'static str, String)>,
    /// Whether workspaces can be created on demand.
    pub(super) creates_workspaces: bool,
}

/// Stub for builds without the daemon.
#[cfg(not(feature = "daemon"))]
#[derive(Debug)]
pub(super) enum Daemon {}

#[cfg(not(feature = "daemon"))]
impl Daemon {
    pub(super) fn start() -> Result<Self, crate::cli_error::CliError> {
        Err(crate::cli_error::CliError::Usage(
            "this jig was built without the daemon: name one with --address or JIG_ADDRESS"
                .to_owned(),
        ))
    }

    pub(super) fn start_with_keys<const N: usize>(
        _: [&str; N],
    ) -> Result<(Self, [String; N]), crate::cli_error::CliError> {
        Self::start().map(|daemon| match daemon {})
    }

    pub(super) fn workspace(&self) -> std::path::PathBuf {
        match *self {}
    }

    pub(super) fn state_dir(&self) -> std::path::PathBuf {
        match *self {}
    }

    pub(super) fn agent_sandbox_addresses(&self) -> [String; 2] {
        match *self {}
    }

    pub(super) fn address(&self) -> &str {
        match *self {}
    }

    pub(super) fn process(&self) -> i32 {
        match *self {}
    }

    pub(super) fn start_with_settings(
        _: &DaemonSettings,
    ) -> Result<Self, crate::cli_error::CliError> {
        Self::start()
    }

    pub(super) fn restart(
        &mut self,
        _: rustix::process::Signal,
    ) -> Result<(), crate::cli_error::CliError> {
        match *self {}
    }

    pub(super) fn log(&self) -> String {
        match *self {}
    }
}

#[cfg(feature = "daemon")]
mod started {
    use std::{
        fs::{self, File},
        io::{self, BufRead as _, BufReader, Read},
        path::Path,
        process::{Child, Command, Stdio},
        sync::mpsc,
        thread,
        time::{Duration, Instant},
    };

    use jig::daemon::key_admin::{self, KeyInfo};
    use rustix::process::{Pid, Signal, kill_process};
    use tempfile::TempDir;

    use super::DaemonSettings;
    use crate::cli_error::CliError;

    /// The target is 100 ms. A slower machine is not worth measuring.
    const START_TIMEOUT: Duration = Duration::from_secs(30);
    /// Longer than an idle daemon needs to drain.
    const STOP_TIMEOUT: Duration = Duration::from_secs(10);
    /// Interval at which the end of the process is checked.
    const STOP_INTERVAL: Duration = Duration::from_millis(5);

    /// A running daemon. Dropping it stops the process.
    #[derive(Debug)]
    pub(in super::super) struct Daemon {
        child: Child,
        address: String,
        settings: DaemonSettings,
        // Dropped after the process, which uses it.
        directory: TempDir,
    }

    impl Daemon {
        /// Starts this binary as a daemon on a Unix socket, and waits until it accepts calls.
        pub(in super::super) fn start() -> Result<Self, CliError> {
            Self::start_with_settings(&DaemonSettings::default())
        }

        /// Like [`Self::start`], with other settings.
        pub(in super::super) fn start_with_settings(
            settings: &DaemonSettings,
        ) -> Result<Self, CliError> {
            Self::start_with(settings, |_| Ok(Vec::new())).map(|(daemon, _)| daemon)
        }

        /// Like [`Self::start`], with an API key per name. Returns the keys.
        pub(in super::super) fn start_with_keys<const N: usize>(
            names: [&str; N],
        ) -> Result<(Self, [String; N]), CliError> {
            let (daemon, keys) = Self::start_with(&DaemonSettings::default(), |file| {
                let keys = names.iter().map(|name| {
                    let grant = KeyInfo {
                        name: (*name).to_owned(),
                        role: "invoke".to_owned(),
                        ..KeyInfo::default()
                    };
                    key_admin::add(file, &grant, None).map_err(start_error)
                });
                keys.collect()
            })?;

            let keys = <[String; N]>::try_from(keys);
            Ok((daemon, keys.map_err(|_| start_error("a key is missing"))?))
        }

        fn start_with(
            settings: &DaemonSettings,
            make_keys: impl FnOnce(&Path) -> Result<Vec<String>, CliError>,
        ) -> Result<(Self, Vec<String>), CliError> {
            let directory =
                tempfile::Builder::new().prefix("jig-bench-").tempdir().map_err(start_error)?;
            let path = directory.path();
            fs::create_dir(path.join("ws")).map_err(start_error)?;
            let file = path.join("keys.toml");
            let keys = make_keys(&file)?;
            let created = created_workspaces(path, settings).map_err(start_error)?;
            fs::write(path.join("config.toml"), config(path) + &settings.config + &created)
                .map_err(start_error)?;
            let mut command = command(path, settings, open_log(path)?);
            if !keys.is_empty() {
                command.arg("--keys").arg(file);
            }
            let child = command.spawn().map_err(start_error)?;

            let (address, settings) = (String::new(), settings.clone());
            let mut daemon = Self { child, address, settings, directory };
            daemon.await_address()?;
            Ok((daemon, keys))
        }

        /// Returns the workspace directory.
        pub(in super::super) fn workspace(&self) -> std::path::PathBuf {
            self.directory.path().join("ws")
        }

        /// Returns the state directory.
        pub(in super::super) fn state_dir(&self) -> std::path::PathBuf {
            state_dir(self.directory.path(), &self.settings)
        }

        /// Returns the addresses of the agent-sandbox runtime: gRPC and REST.
        pub(in super::super) fn agent_sandbox_addresses(&self) -> [String; 2] {
            agent_sandbox_addresses(self.directory.path())
        }

        /// Returns the address of the daemon.
        pub(in super::super) fn address(&self) -> &str {
            &self.address
        }

        /// Returns the process id.
        pub(in super::super) fn process(&self) -> i32 {
            Pid::from_child(&self.child).as_raw_nonzero().get()
        }

        /// Ends the daemon with a signal, and starts it again on the same workspace, state and
        /// socket. It must have been started without keys.
        pub(in super::super) fn restart(&mut self, signal: Signal) -> Result<(), CliError> {
            self.stop(signal).map_err(CliError::system)?;
            let path = self.directory.path();
            let mut command = command(path, &self.settings, open_log(path)?);
            self.child = command.spawn().map_err(start_error)?;
            self.await_address()
        }

        /// Returns the log of all daemons of this directory.
        pub(in super::super) fn log(&self) -> String {
            fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
        }

        fn await_address(&mut self) -> Result<(), CliError> {
            self.address = self.listen_address().ok_or_else(|| {
                let log = self.log();
                CliError::System(format!("the daemon did not start; its log: {}", log.trim()))
            })?;
            Ok(())
        }

        fn listen_address(&mut self) -> Option<String> {
            let stdout = self.child.stdout.take()?;
            let (sender, receiver) = mpsc::sync_channel(1);
            // In a thread, because a read from a silent pipe cannot be cancelled.
            thread::spawn(move || send_address(stdout, &sender));
            receiver.recv_timeout(START_TIMEOUT).ok()
        }

        fn stop(&mut self, signal: Signal) -> io::Result<()> {
            kill_process(Pid::from_child(&self.child), signal)?;
            let deadline = Instant::now() + STOP_TIMEOUT;
            while Instant::now() < deadline {
                if self.child.try_wait()?.is_some() {
                    return Ok(());
                }
                thread::sleep(STOP_INTERVAL);
            }

            self.child.kill()?;
            self.child.wait()?;
            Ok(())
        }
    }

    impl Drop for Daemon {
        fn drop(&mut self) {
            if let Err(error) = self.stop(Signal::TERM) {
                crate::output::note(&format!("the benchmark's daemon may still run: {error}"));
            }
        }
    }

    fn agent_sandbox_addresses(path: &Path) -> [String; 2] {
        ["agent-sandbox-grpc", "agent-sandbox-rest"]
            .map(|name| format!("unix:{}", path.join(name).display()))
    }

    fn state_dir(path: &Path, settings: &DaemonSettings) -> std::path::PathBuf {
        settings.state_dir.clone().unwrap_or_else(|| path.join("state"))
    }

    /// Settings that have no options.
    fn config(path: &Path) -> String {
        let [grpc, rest] = agent_sandbox_addresses(path);
        format!("[agent_sandbox]\ngrpc_listen = {grpc:?}\nrest_listen = {rest:?}\n")
    }

    /// The table of workspaces on demand, whose directory is made. Empty without such workspaces.
    fn created_workspaces(path: &Path, settings: &DaemonSettings) -> io::Result<String> {
        if !settings.creates_workspaces {
            return Ok(String::new());
        }
        let directory = path.join("created");
        fs::create_dir(&directory)?;
        Ok(format!("\n[workspaces_on_demand]\ndirectory = {directory:?}\n"))
    }

    /// Opens the log, which later daemons of the directory continue.
    fn open_log(path: &Path) -> Result<File, CliError> {
        let mut options = File::options();
        options.create(true).append(true).open(path.join("log")).map_err(start_error)
    }

    fn command(path: &Path, settings: &DaemonSettings, log: File) -> Command {
        let own = Path::new("/proc/self/exe");
        #[expect(
            clippy::disallowed_methods,
            reason = "the daemon that is measured must not share a process with its clients"
        )]
        let mut command = Command::new(settings.program.as_deref().unwrap_or(own));
        if settings.program.is_none() {
            command.arg("serve");
        }
        command.arg("--listen");
        command.arg(format!("unix:{}", path.join("sock").display()));
        command.args(["--log", "json", "--state-dir"]);
        command.arg(state_dir(path, settings));
        command.arg("--workspace").arg(path.join("ws"));
        command.arg("--config").arg(path.join("config.toml"));
        command.stdin(Stdio::null());
        command.stdout(Stdio::piped());
        command.stderr(log);
        // The user's settings are for another daemon.
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("JIG_")) {
                command.env_remove(name);
            }
        }
        command.envs(settings.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Sends the first address of the contract that the daemon prints. Reads on afterwards, so that the daemon
    /// never writes to a closed pipe.
    fn send_address(stdout: impl Read, sender: &mpsc::SyncSender<String>) {
        let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
        let address = lines.find_map(|line| {
            let address = line.strip_prefix("listening on ")?;
            // Other listeners have a suffix with their API.
            (!address.contains(" for ")).then(|| address.to_owned())
        });
        if address.is_some_and(|address| sender.send(address).is_ok()) {
            lines.for_each(drop);
        }
    }

    fn start_error(error: impl std::fmt::Display) -> CliError {
        CliError::System(format!("cannot start a daemon: {error}"))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn listen_address_is_found() {
            let (sender, receiver) = mpsc::sync_channel(1);
            let output =
                "listening on unix:/r for agent-sandbox REST\nlistening on unix:/s\nmore\n";
            send_address(output.as_bytes(), &sender);
            assert_eq!(receiver.try_recv().unwrap(), "unix:/s");
            send_address(&b"hello\n"[..], &sender);
            assert!(receiver.try_recv().is_err());
        }
    }
}
