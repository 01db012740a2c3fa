//! Hosts that support only lower isolation levels, and daemons that accept those levels.

use std::sync::Arc;

use super::{HostProgram, Setup};

/// User of these daemons. Root could undo the restrictions of these hosts.
pub(crate) const DAEMON_UID: u32 = 12345;

/// Covers parts of /proc as container runtimes do, and changes to the user.
const MASK_PROC_SCRIPT: &str = r#"
    set -e
    for file in kcore keys timer_list interrupts; do
        [ ! -e /proc/$file ] || mount --bind /dev/null /proc/$file
    done
    mount --bind /proc/sys /proc/sys
    mount -o remount,bind,ro /proc/sys
    exec setpriv --reuid="$JIG_TEST_USER" --regid="$JIG_TEST_USER" --clear-groups "$0" "$@"
"#;

/// Docker's default capabilities, for setpriv(1).
const ENGINE_BOUNDING_SET: &str = "--bounding-set=-all,+audit_write,+chown,+dac_override,+fowner,+fsetid,+kill,+mknod,+net_bind_service,+net_raw,+setfcap,+setgid,+setpcap,+setuid,+sys_chroot";

impl Setup {
    /// A daemon of an ordinary user on a host with a masked `/proc`.
    pub(crate) fn with_masked_proc(self) -> Self {
        self.user(DAEMON_UID)
            .environment("JIG_TEST_USER", &DAEMON_UID.to_string())
            .wrapped_by([
                "unshare",
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-c",
                MASK_PROC_SCRIPT,
            ])
            .wrapper_sets_user()
    }

    /// A daemon of an ordinary user on a host without namespaces.
    pub(crate) fn without_namespaces(self) -> Self {
        let wrapper = Arc::new(HostProgram::compile("no_namespaces"));
        self.user(DAEMON_UID).wrapped_by([&wrapper.path]).with_resource(wrapper)
    }

    /// A daemon as root with an engine's capabilities, on a host without namespaces. The workspace
    /// belongs to the user of its commands.
    pub(crate) fn with_container_root(self) -> Self {
        let wrapper = Arc::new(HostProgram::compile("no_namespaces"));
        let path = wrapper.path.clone();
        let flags = ["--minimum-level", "L1", "--chown-workspace"];
        self.wrapped_by([path.into_os_string()])
            .and_wrapped_by(["/usr/bin/setpriv", "--inh-caps=-all", ENGINE_BOUNDING_SET])
            .with_resource(wrapper)
            .arguments(&flags)
    }

    /// As [`Self::with_masked_proc`], with L2 as the minimum level.
    pub(crate) fn at_l2(self) -> Self {
        self.with_masked_proc().arguments(&["--minimum-level", "L2"])
    }

    /// As [`Self::without_namespaces`], with L1 as the minimum level.
    pub(crate) fn at_l1(self) -> Self {
        self.without_namespaces().arguments(&["--minimum-level", "L1"])
    }
}
