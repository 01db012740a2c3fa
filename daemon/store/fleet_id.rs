//! The name of this daemon in its fleet, in a file of the state directory: what the daemon has begun
//! is in the same directory, so both are lost together.

use std::{
    fs::{self, File},
    io::{self, ErrorKind, Write as _},
    path::Path,
};

use ulid::Ulid;

/// Returns the name in the file at `path`. Creates the file with a new name if it is missing.
pub(crate) fn read_or_create(path: &Path) -> io::Result<String> {
    match fs::read_to_string(path) {
        Ok(id) if Ulid::from_string(id.trim()).is_ok() => return Ok(id.trim().to_owned()),
        // A daemon that died while it created the file had no other record of the name.
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }

    let id = Ulid::generate().to_string();
    let mut file = File::create(path)?;
    writeln!(file, "{id}")?;
    file.sync_all()?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fleet-id");
        let id = read_or_create(&path).unwrap();
        assert_eq!(read_or_create(&path).unwrap(), id);

        fs::write(&path, "").unwrap();
        assert_ne!(read_or_create(&path).unwrap(), id);
    }
}
