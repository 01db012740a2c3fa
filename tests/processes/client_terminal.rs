//! `jig exec -it` on a terminal, as `ssh -t` is used.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
};

use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize},
};

use crate::support::{Daemon, Mark, eventually};

/// Somebody who sits at a terminal on which `jig` runs.
struct Person {
    screen: File,
    behind: File,
    seen: Arc<Mutex<Vec<u8>>>,
    jig: Child,
}

impl Person {
    /// Runs `jig` on a terminal that controls it.
    fn runs(daemon: &Daemon, arguments: &[&str]) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let screen = openpt(flags).unwrap();
        grantpt(&screen).unwrap();
        unlockpt(&screen).unwrap();
        let name = ptsname(&screen, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let behind = File::from(openat(CWD, name, flags, Mode::empty()).unwrap());
        let screen = File::from(screen);
        set_size(&behind, 100, 40);
        let jig = Command::new("setsid")
            .args(["--ctty", "--wait", env!("CARGO_BIN_EXE_jig")])
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("TERM", "vt100")
            .env("JIG_ADDRESS", format!("unix:{}", daemon.socket().display()))
            .stdin(Stdio::from(behind.try_clone().unwrap()))
            .stdout(Stdio::from(behind.try_clone().unwrap()))
            .stderr(Stdio::from(behind.try_clone().unwrap()))
            .spawn()
            .unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (mut reads, into) = (screen.try_clone().unwrap(), Arc::clone(&seen));
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(bytes @ 1..) = reads.read(&mut buffer) {
                into.lock().unwrap().extend_from_slice(&buffer[..bytes]);
            }
        });
        Self {
            screen,
            behind,
            seen,
            jig,
        }
    }

    fn types(&mut self, keys: &str) {
        self.screen.write_all(keys.as_bytes()).unwrap();
    }

    fn screen(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap()).into_owned()
    }

    async fn sees(&self, text: &str) {
        eventually(&format!("{text:?} is seen"), async || {
            self.screen().contains(text)
        })
        .await;
    }

    /// Waits until `jig` has ended; answers its exit code. The terminal must be as it was.
    async fn ends(&mut self) -> Option<i32> {
        let mut status = None;
        eventually("jig ends", async || {
            status = self.jig.try_wait().unwrap();
            status.is_some()
        })
        .await;
        let modes = tcgetattr(&self.behind).unwrap().local_modes;
        let usual = LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        assert!(
            modes.contains(usual),
            "the terminal is as it was: {modes:?}"
        );
        status.unwrap().code()
    }
}

impl Drop for Person {
    fn drop(&mut self) {
        // It may have ended.
        let _ended = self.jig.kill();
        let _reaped = self.jig.wait();
    }
}

fn set_size(terminal: &File, columns: u16, rows: u16) {
    let size = Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(terminal, size).unwrap();
}

#[tokio::test]
async fn a_shell_is_used_as_over_ssh() {
    let daemon = Daemon::start().await;
    let mut person = Person::runs(&daemon, &["exec", "-it", "--", "bash", "--norc"]);
    person.types("echo $TERM; stty size\r");
    person.sees("vt100\r\n40 100\r\n").await;
    // The window changes.
    set_size(&person.behind, 77, 33);
    person.types("while [ \"$(stty size)\" != '33 77' ]; do sleep 0.05; done; echo re''sized\r");
    person.sees("resized\r\n").await;
    // Ctrl-C is the command's, and neither jig's nor the shell's end.
    person.types("sleep 1000; echo $? slept\r");
    eventually("it sleeps", async || {
        let listed = daemon.list_processes().await;
        !listed.is_empty() && person.screen().contains("slept")
    })
    .await;
    let sleeps = async || {
        let found = crate::support::descendants(daemon.pid());
        found.iter().any(|process| {
            crate::support::host_status(process.pid, "Name").is_some_and(|name| name == "sleep")
        })
    };
    eventually("it sleeps", sleeps).await;
    person.types("\x03");
    person.types("echo status=$?\r");
    person.sees("status=130\r\n").await;
    person.types("exit 42\r");
    assert_eq!(person.ends().await, Some(42));
}

#[tokio::test]
async fn a_terminal_can_be_left_and_come_back_to() {
    let daemon = Daemon::start().await;
    let mut person = Person::runs(&daemon, &["exec", "-it", "--keep", "--", "bash", "--norc"]);
    person.types("marker=here; echo be''gun\r");
    person.sees("begun\r\n").await;
    person.types("\r~.");
    assert_eq!(person.ends().await, Some(0));
    let id = daemon.list_processes().await[0].process_id.clone();
    assert!(
        person.screen().contains(&format!("jig attach -i {id}")),
        "{}",
        person.screen()
    );
    let mut again = Person::runs(&daemon, &["attach", "-i", &id]);
    // What was written before comes again.
    again.sees("begun\r\n").await;
    again.types("echo still $marker; exit 9\r");
    again.sees("still here\r\n").await;
    assert_eq!(again.ends().await, Some(9));
}

#[tokio::test]
async fn leaving_ends_what_is_not_kept() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let marked = mark.on_process(Default::default());
    let (name, value) = marked.env.iter().next().unwrap();
    let variable = format!("{name}={value}");
    let mut person = Person::runs(
        &daemon,
        &["exec", "-it", "--env", &variable, "--", "bash", "--norc"],
    );
    person.types("echo be''gun\r");
    person.sees("begun\r\n").await;
    person.types("~.");
    assert_eq!(person.ends().await, Some(130));
    mark.vanishes().await;
}

#[tokio::test]
async fn with_nothing_named_there_is_a_shell() {
    let daemon = Daemon::start().await;
    let mut person = Person::runs(&daemon, &["exec", "-it"]);
    person.types("echo $0-$((6 * 7)); exit\r");
    person.sees("bash-42\r\n").await;
    assert_eq!(person.ends().await, Some(0));
}

#[tokio::test]
async fn full_screen_programs_get_their_keys() {
    let daemon = Daemon::start().await;
    std::fs::write(daemon.file("text"), "line\n".repeat(200)).unwrap();
    let mut person = Person::runs(&daemon, &["exec", "-it", "less text"]);
    person.sees("text").await;
    person.types("q");
    assert_eq!(person.ends().await, Some(0));
}
