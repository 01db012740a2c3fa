//! Control requests of clients to the supervisor of a command.

use std::collections::VecDeque;

use tokio::sync::oneshot;

use super::handle::{ControlReceiver, ProcessControl};

/// A control request, and the sender that confirms it.
pub(super) type PendingControl = (ProcessControl, oneshot::Sender<()>);

/// Waits for a signal that ends a command before it is in a sandbox. Defers other requests.
pub(super) async fn wait_for_end_signal(
    controls: &mut Option<ControlReceiver>,
    deferred: &mut VecDeque<PendingControl>,
) {
    const END_SIGNALS: [i32; 5] =
        [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGKILL, libc::SIGTERM];
    loop {
        let (control, applied) = next_control(controls, &mut VecDeque::new()).await;
        if let ProcessControl::Signal(signal) = control
            && END_SIGNALS.contains(&signal)
        {
            let _sender_has_gone = applied.send(());
            return;
        }
        deferred.push_back((control, applied));
    }
}

/// Waits for a control request; forever if there can be none.
pub(super) async fn next_control(
    controls: &mut Option<ControlReceiver>,
    deferred: &mut VecDeque<PendingControl>,
) -> PendingControl {
    if let Some(control) = deferred.pop_front() {
        return control;
    }
    if let Some(controls) = controls
        && let Some(control) = controls.recv().await
    {
        return control;
    }
    std::future::pending().await
}
