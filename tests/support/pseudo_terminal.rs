//! Opens pseudo-terminals.

use std::fs::File;

use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
};

/// Opens a pseudo-terminal. Returns the side of its user, which reads the screen and types, and the
/// side of programs. Neither becomes a controlling terminal.
pub(crate) fn open_pseudo_terminal() -> (File, File) {
    let user_side = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&user_side).unwrap();
    unlockpt(&user_side).unwrap();

    let name = ptsname(&user_side, Vec::new()).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let program_side = openat(CWD, name, flags, Mode::empty()).unwrap();
    (File::from(user_side), File::from(program_side))
}
