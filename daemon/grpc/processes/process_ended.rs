//! The error of a call to a process that has ended.

use crate::daemon::{
    error::{Error, Reason},
    process::handle::ProcessHandle,
};

pub(super) fn process_ended_error(process: &ProcessHandle) -> Error {
    let text = "the process has ended: Attach returns its exit";
    Error::new(Reason::ProcessEnded, text).with_metadata("process_id", process.info.id.clone())
}
