//! What the daemon runs in, as far as it decides about isolation, and the line that gives commands more.

use std::{fmt, fs, path::Path};

use rustix::{
    process::geteuid,
    thread::{CapabilitySet, capabilities},
};

use super::{masked_proc, stage::Stage};

/// What the daemon runs in.
#[derive(Debug, Clone, Default)]
pub(crate) struct Surroundings {
    engine: Engine,
    user: u32,
    /// Whether it may become other users.
    becomes_others: bool,
    /// Whether it may mount.
    mounts: bool,
    /// Whether a seccomp filter is on it.
    filtered: bool,
    /// Whether parts of `/proc` are covered.
    masked: bool,
}

/// Who started it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Engine {
    /// No container engine that leaves a mark.
    #[default]
    None,
    Docker,
    Podman,
    Kubernetes,
}

impl Surroundings {
    /// Looks at this process. To be called before it gives up privileges and is confined.
    pub(crate) fn find() -> Self {
        let held = capabilities(None).map(|sets| sets.effective);
        let held = held.unwrap_or(CapabilitySet::empty());
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let engine = if is_set("KUBERNETES_SERVICE_HOST") {
            Engine::Kubernetes
        } else if Path::new("/run/.containerenv").exists() {
            Engine::Podman
        } else if Path::new("/.dockerenv").exists() {
            Engine::Docker
        } else {
            Engine::None
        };
        Self {
            engine,
            user: geteuid().as_raw(),
            becomes_others: held.contains(CapabilitySet::SETUID | CapabilitySet::SETGID),
            mounts: held.contains(CapabilitySet::SYS_ADMIN),
            filtered: status.lines().any(|line| line == "Seccomp:\t2"),
            masked: masked_proc::is_masked().unwrap_or(false),
        }
    }

    /// Whether nothing of a container's keeps commands from the highest level.
    pub(super) fn is_open(&self) -> bool {
        !self.filtered && !self.masked
    }

    /// What an operator can change so that commands are run, or get a higher level: an option of the
    /// container where its engine is known, else what the failed step names.
    pub(super) fn remedy(&self, stage: Stage) -> String {
        match (stage, self.engine) {
            (Stage::MapOwner, _) => {
                "--chown-workspace (gives root's files in the workspace to the user of commands), or a volume for the workspace".to_owned()
            }
            (Stage::WorkspaceOwner, _) if self.is_open() => {
                "--chown-workspace (gives root's files in the workspace to the user of commands)".to_owned()
            }
            (Stage::WorkspaceOwner, _) => {
                "--chown-workspace --minimum-level L1 (gives root's files in the workspace to the user of commands)".to_owned()
            }
            (Stage::Identity, Engine::Docker | Engine::Podman) => {
                "the container's option --user 1000:1000, as whom the workspace is (or --cap-add SETUID,SETGID,CHOWN,KILL and --chown-workspace), and --minimum-level L1".to_owned()
            }
            (Stage::Identity, Engine::Kubernetes) => {
                "securityContext.runAsUser: 1000, as whom the workspace is, and --minimum-level L1".to_owned()
            }
            (_, Engine::Docker | Engine::Podman) if self.filtered || self.masked => {
                let is_of_proc = matches!(stage, Stage::MountTemplateProc | Stage::MountProc | Stage::MaskProc);
                let mut options = Vec::new();
                if self.filtered && !is_of_proc {
                    options.push("--security-opt seccomp=unconfined");
                }
                if self.masked {
                    options.push(match self.engine {
                        Engine::Docker => "--security-opt systempaths=unconfined",
                        Engine::Podman | Engine::Kubernetes | Engine::None => "--security-opt unmask=ALL",
                    });
                }
                format!("the container's options {}", options.join(" "))
            }
            (_, Engine::Kubernetes) if self.filtered || self.masked => {
                "hostUsers: false, procMount: Unmasked and a seccompProfile that allows namespaces and mounts, in the pod's securityContext".to_owned()
            }
            (stage, _) => stage.remedy().to_owned(),
        }
    }
}

impl fmt::Display for Surroundings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.engine {
            Engine::None => "host",
            Engine::Docker => "Docker container",
            Engine::Podman => "Podman container",
            Engine::Kubernetes => "pod",
        })?;
        match (self.user, self.mounts, self.becomes_others) {
            (0, true, _) => f.write_str(", root with CAP_SYS_ADMIN")?,
            (0, false, true) => f.write_str(", root without CAP_SYS_ADMIN")?,
            (0, false, false) => f.write_str(", root without CAP_SETUID")?,
            (user, ..) => write!(f, ", user {user}")?,
        }
        if self.filtered {
            f.write_str(", seccomp profile")?;
        }
        if self.masked {
            f.write_str(", masked /proc")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_names_options_of_the_engine() {
        let docker = Surroundings {
            engine: Engine::Docker,
            becomes_others: true,
            filtered: true,
            masked: true,
            ..Surroundings::default()
        };
        let podman = Surroundings { engine: Engine::Podman, ..docker.clone() };
        let open = Surroundings { filtered: false, masked: false, ..podman.clone() };
        let pod = Surroundings { engine: Engine::Kubernetes, user: 1000, ..docker.clone() };
        let host = Surroundings { engine: Engine::None, ..open.clone() };
        for (found, stage, expected) in [
            (
                &docker,
                Stage::UserNamespace,
                "seccomp=unconfined --security-opt systempaths=unconfined",
            ),
            (&podman, Stage::MountTemplateProc, "options --security-opt unmask=ALL"),
            (&podman, Stage::WorkspaceOwner, "--chown-workspace --minimum-level L1"),
            (&open, Stage::WorkspaceOwner, "--chown-workspace (gives"),
            (&open, Stage::MapOwner, "--chown-workspace"),
            (&docker, Stage::Identity, "--user 1000:1000"),
            (&pod, Stage::UserNamespace, "procMount: Unmasked"),
            (&host, Stage::UserNamespace, "max_user_namespaces"),
        ] {
            let remedy = found.remedy(stage);
            assert!(remedy.contains(expected), "{found} {stage:?}: {remedy}");
        }
        assert_eq!(
            docker.to_string(),
            "Docker container, root without CAP_SYS_ADMIN, seccomp profile, masked /proc"
        );
        assert_eq!(pod.to_string(), "pod, user 1000, seccomp profile, masked /proc");
    }
}
