//! The home directory of the user that a process runs as.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// The home directory: `HOME`, or where that is not set, as for services and cron, that of the user
/// database.
pub fn home_dir() -> Option<PathBuf> {
    match env::var_os("HOME") {
        // The standard library asks the database only where the variable is not there at all.
        Some(home) if home.is_empty() => {
            let users = fs::read_to_string("/etc/passwd").ok()?;
            of_user(&users, rustix::process::geteuid().as_raw())
        }
        Some(home) => Some(home.into()),
        None => env::home_dir(),
    }
}

/// The home directory of a user in a file of the form of passwd(5).
fn of_user(users: &str, user: u32) -> Option<PathBuf> {
    let fields = |line: &str| {
        let fields: Vec<&str> = line.split(':').collect();
        let is_user = fields.get(2)?.parse() == Ok(user);
        is_user.then(|| Path::new(fields.get(5).copied().unwrap_or_default()).to_owned())
    };
    users.lines().find_map(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_database_has_home_directories() {
        let users = "root:x:0:0:root:/home/of-root:/bin/sh\nshort:x:7\nme:x:1000:1000::/home/me:\n";
        for (user, home) in
            [(0, Some("/home/of-root")), (1000, Some("/home/me")), (7, Some("")), (1, None)]
        {
            assert_eq!(of_user(users, user).as_deref(), home.map(Path::new));
        }
    }
}
