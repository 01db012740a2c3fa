//! A daemon whose user has no epoll watches left.

use std::{fs, process::Command};

use tempfile::TempDir;

use super::Setup;

/// While a file exists, epoll_ctl(2) of the daemon fails as when its user has no watches left. The
/// real limit is per machine: other tests would lack watches as well.
const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>
int epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event) {
    int (*real)(int, int, int, struct epoll_event *) = dlsym(RTLD_NEXT, "epoll_ctl");
    const char *path = getenv("JIG_TEST_NO_WATCHES");
    if (operation == EPOLL_CTL_ADD && path && access(path, F_OK) == 0) {
        errno = ENOSPC;
        return -1;
    }
    return real(epoll, operation, fd, event);
}
"#;

/// A shortage of epoll watches that the test begins and ends.
#[derive(Debug)]
pub(crate) struct EpollShortage {
    directory: TempDir,
}

impl EpollShortage {
    /// Compiles the library. There is no shortage yet.
    pub(crate) fn new() -> Self {
        let shortage = Self { directory: TempDir::with_prefix("jig-test-epoll-").unwrap() };
        fs::write(shortage.path("source.c"), SOURCE).unwrap();
        let [source, library] = ["source.c", "library.so"].map(|name| shortage.path(name));
        let flags = ["-shared", "-fPIC", "-Wall", "-Werror", "-o", &library, &source];
        assert!(Command::new("gcc").args(flags).status().unwrap().success());
        shortage
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().unwrap().to_owned()
    }

    /// Makes a daemon subject to the shortage.
    pub(crate) fn apply_to(&self, setup: Setup) -> Setup {
        let setup = setup.environment("LD_PRELOAD", &self.path("library.so"));
        setup.environment("JIG_TEST_NO_WATCHES", &self.path("shortage"))
    }

    pub(crate) fn begin(&self) {
        fs::write(self.path("shortage"), "").unwrap();
    }

    pub(crate) fn end(&self) {
        fs::remove_file(self.path("shortage")).unwrap();
    }
}
