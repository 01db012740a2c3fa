//! Progress of a call by name, for a frontend that streams it to the caller.

use tokio::sync::watch;

/// Reports the progress of a call to a [`CallProgressReceiver`].
#[derive(Debug, Clone)]
pub(crate) struct CallObserver {
    progress: watch::Sender<CallProgress>,
    output_written: watch::Sender<()>,
}

/// Receives the progress of a call.
#[derive(Debug)]
pub(crate) struct CallProgressReceiver {
    pub(crate) progress: watch::Receiver<CallProgress>,
    /// Notified whenever the command of the call has written output.
    pub(crate) output_written: watch::Receiver<()>,
}

/// The progress of a call.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallProgress {
    /// Step of the session with the output of the last command.
    pub(crate) step: Option<u64>,
    /// The last approval that the call has requested.
    pub(crate) approval_id: Option<String>,
}

impl CallObserver {
    pub(crate) fn new() -> (Self, CallProgressReceiver) {
        let (progress, progress_receiver) = watch::channel(CallProgress::default());
        let (output_written, output_receiver) = watch::channel(());
        let receiver =
            CallProgressReceiver { progress: progress_receiver, output_written: output_receiver };
        (Self { progress, output_written }, receiver)
    }

    pub(super) fn output_notifier(&self) -> &watch::Sender<()> {
        &self.output_written
    }

    pub(super) fn report_step(&self, step: u64) {
        self.progress.send_modify(|progress| progress.step = Some(step));
    }

    pub(in crate::daemon::pipeline) fn report_approval(observer: Option<&Self>, approval_id: &str) {
        let Some(Self { progress, .. }) = observer else { return };
        progress.send_modify(|progress| progress.approval_id = Some(approval_id.to_owned()));
    }
}

impl CallProgressReceiver {
    /// Awaits the decision on a call, and reports the approval that it waits for meanwhile.
    pub(super) async fn report_approval<T>(
        mut self,
        mut decision: impl Future<Output = T> + Unpin,
        report: impl Fn(Option<String>),
    ) -> T {
        loop {
            tokio::select! {
                biased;
                decided = &mut decision => {
                    report(None);
                    return decided;
                }
                Ok(()) = self.progress.changed() => {
                    let approval_id = self.progress.borrow_and_update().approval_id.clone();
                    report(approval_id);
                }
            }
        }
    }
}
