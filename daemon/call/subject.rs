//! What is known of a call before it is decided whether it may be made.

use std::{sync::Arc, time::Instant};

use super::policy::{
    decision::Snapshot,
    judged::{Judged, Spoken},
};
use crate::{
    api::v1::Risk,
    daemon::{
        catalog::{Given, Reading, Told},
        tool::{Approved, Scene},
        workspace::RelativePath,
    },
};

/// What is to be decided about.
#[derive(Debug)]
pub(super) struct Subject {
    /// The call.
    pub(super) call: Arc<Judged>,
    /// What decides: it has said which parameters can matter.
    pub(super) snapshot: Arc<Snapshot>,
    /// What who is asked is told, where that can be.
    pub(super) shown: Vec<(String, String)>,
    /// A pattern for the call and its like, where there can be one.
    pub(super) pattern: Option<String>,
    /// Files that the call names, likewise.
    pub(super) files: Vec<String>,
    /// Where the command that it runs is to begin.
    pub(super) cwd: Option<RelativePath>,
    /// Bytes that the call holds while it waits, about.
    pub(super) size: usize,
    /// What it was made with, where nobody needs to know that yet.
    pub(super) said: Option<Arc<Said>>,
}

/// Longest parameters that are kept of a call while it waits for a place: those of most calls, and little
/// beside what a call costs that waits. Of longer ones it is not known any more what they were.
pub(super) const KEPT: usize = 64 << 10;

/// What a call was judged as, and by what.
#[derive(Debug, Clone)]
pub(super) struct Judgement {
    pub(super) call: Arc<Judged>,
    pub(super) snapshot: Arc<Snapshot>,
    /// What it was made with, where nobody had to know its parameters: somebody may, once it has waited.
    pub(super) said: Option<Arc<Said>>,
}

/// What a call was made with.
#[derive(Debug)]
pub(super) struct Said {
    /// Full name of the message, where it is not that of the tool.
    pub(super) message: Option<&'static str>,
    /// The message.
    pub(super) encoded: Vec<u8>,
}

/// A call that may be made.
#[derive(Debug, Clone, Default)]
pub(crate) struct Permitted {
    /// What has let it in, where that is not the risk of its tool.
    pub(crate) by: Option<String>,
    /// Until when a place may be waited for, where somebody was asked: that is not to be for nothing.
    pub(super) until: Option<Instant>,
    /// Device and inode of the directory that its command was approved to start in.
    pub(super) cwd: Option<(u64, u64)>,
}

impl Judgement {
    /// Leaves what is short, so that many can wait. Answers how many bytes that is.
    pub(super) fn shorten(&mut self) -> usize {
        if self.call.size() > KEPT {
            self.call = Arc::new(self.call.without_parameters());
        }
        let said = self.said.as_ref().map(|said| said.encoded.len());
        self.call.size() + said.unwrap_or_default()
    }
}

impl Permitted {
    /// The approval, where somebody was asked.
    pub(super) fn approved(&self) -> Option<Approved> {
        let by = self.until.and(self.by.clone())?;
        Some(Approved { by, cwd: self.cwd })
    }
}

impl Subject {
    /// What is to be looked at again where it may take long before the call begins.
    pub(super) fn judgement(&self) -> Judgement {
        Judgement {
            call: Arc::clone(&self.call),
            snapshot: Arc::clone(&self.snapshot),
            said: self.said.clone(),
        }
    }

    /// A call of which nobody needs to know the parameters, as `snapshot` decides.
    pub(super) fn new(
        tool: &'static str,
        risk: Risk,
        workspace: String,
        snapshot: Arc<Snapshot>,
    ) -> Self {
        Self {
            call: Arc::new(Judged { tool, risk, workspace, texts: Vec::new(), said: None }),
            snapshot,
            shown: Vec::new(),
            pattern: None,
            files: Vec::new(),
            cwd: None,
            size: 0,
            said: None,
        }
    }

    /// The same, which was made as this in a dialect.
    pub(super) fn said_as(self, said: Option<Arc<Spoken>>) -> Self {
        let bytes = said.iter().flat_map(|said| &said.texts);
        let bytes: usize = bytes.map(|text| text.text.len()).sum();
        Self {
            size: self.size + bytes,
            call: Arc::new(Judged { said, ..self.call.with_parameters(Vec::new()) }),
            ..self
        }
    }

    /// The same with its parameters, which take so many bytes, and the files that it names.
    pub(super) fn with(self, told: Told, files: Vec<String>, size: usize) -> Self {
        let texts = told.texts.iter().map(|text| text.text.len());
        let shown = told.shown.iter().map(|(_, value)| value.len());
        let named = files.iter().map(String::len);
        Self {
            size: self.size + size + texts.chain(shown).chain(named).sum::<usize>(),
            call: Arc::new(Judged {
                tool: self.call.tool,
                risk: self.call.risk,
                workspace: self.call.workspace.clone(),
                texts: told.texts,
                said: self.call.said.clone(),
            }),
            shown: told.shown,
            pattern: told.pattern,
            files,
            ..self
        }
    }
}

/// What was given, for those who decide about it.
pub(super) fn told(given: &Given, scene: &Scene, reading: Option<Reading>) -> Told {
    let plain = |path: &str| scene.workspace.resolve(path).ok();
    given.tell(|path| plain(path).map(|path| path.to_string()), reading)
}
