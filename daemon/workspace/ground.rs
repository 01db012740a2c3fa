//! Which directories lie on the way to what a call names. Whoever approves the call sees paths; while
//! they decide, a command that runs beside can put another directory or a link at any of them.

use rustix::fs::{FileType, fstat};

use super::{
    Workspace,
    failure::{Wanted, failure},
    path::RelativePath,
};
use crate::daemon::{error::Error, sys::Errno};

/// The directories on the way to some paths, at one moment.
#[derive(Debug)]
pub(crate) struct Ground {
    ways: Vec<Way>,
    /// A link on the way to the working directory.
    link: Option<(RelativePath, Errno)>,
}

/// The directories on the way to one path, from the workspace down to where nothing, or no directory, is.
#[derive(Debug, PartialEq, Eq)]
struct Way {
    path: RelativePath,
    /// Device and inode of each.
    directories: Vec<(u64, u64)>,
}

impl Ground {
    /// Refuses a link at or on the way to the working directory: commands follow it, to where nobody is
    /// shown.
    pub(crate) fn refuse_link(&self) -> Result<(), Error> {
        match &self.link {
            None => Ok(()),
            Some((path, errno)) => Err(failure(*errno, path.as_str(), Wanted::Directory)),
        }
    }

    /// A path to which other directories lead than in `before`.
    pub(crate) fn changed_since(&self, before: &Self) -> Option<&RelativePath> {
        let mut ways = self.ways.iter().zip(&before.ways);
        ways.find(|(now, before)| now != before)
            .map(|(now, _)| &now.path)
    }
}

impl Workspace {
    /// Looks at the way to each of these paths.
    pub(crate) fn ground(&self, cwd: Option<RelativePath>, files: Vec<RelativePath>) -> Ground {
        let mut ways = Vec::new();
        for path in files {
            let (directories, _) = self.way_to(&path);
            ways.push(Way { path, directories });
        }
        let mut link = None;
        if let Some(path) = cwd {
            let (directories, end) = self.way_to(&path);
            if let Some(errno @ (Errno::LOOP | Errno::XDEV)) = end {
                link = Some((path.clone(), errno));
            }
            ways.push(Way { path, directories });
        }
        Ground { ways, link }
    }

    /// The directories on the way, and why it does not go on, where that is an error.
    fn way_to(&self, path: &RelativePath) -> (Vec<(u64, u64)>, Option<Errno>) {
        let mut directories = Vec::new();
        let mut below = RelativePath::default();
        for name in path.names().filter(|name| !name.is_empty()) {
            below = below.join(name);
            match self.root.open_path(below.as_bytes()).and_then(fstat) {
                Ok(stat) if FileType::from_raw_mode(stat.st_mode).is_dir() => {
                    directories.push((stat.st_dev, stat.st_ino));
                }
                Ok(_) => break,
                Err(errno) => return (directories, Some(errno)),
            }
        }
        (directories, None)
    }
}
