//! Files of one agent, and the contents that the acknowledged calls allow.

use jig::api::v1::{
    ApplyPatchRequest, Edit, EditFileRequest, ListFilesRequest, SearchRequest, WriteFileRequest,
};

use super::{
    caller::{CallFailure, Caller, numbers, read},
    random::SeededRandom,
};

/// Number of files of an agent.
const FILE_COUNT: usize = 6;
/// Most lines of a file after its first.
const MAX_FILE_LINES: u64 = 2000;

/// The files of an agent. Each has one allowed content, or two after a call without an answer.
#[derive(Debug)]
pub(super) struct Files {
    directory: String,
    contents: [Vec<Option<String>>; FILE_COUNT],
}

impl Files {
    pub(super) fn new(directory: &str) -> Self {
        Self {
            directory: format!("{directory}/files"),
            contents: [(); FILE_COUNT].map(|()| vec![None]),
        }
    }

    /// Makes one call.
    pub(super) async fn change_or_read(
        &mut self,
        caller: &Caller,
        id: &str,
        random: &mut SeededRandom,
    ) {
        let file = usize::try_from(random.below(FILE_COUNT as u64)).unwrap_or_default();
        self.settle(caller, file).await;
        let [Some(old)] = self.contents[file].as_slice() else {
            return self.write(caller, id, file, random).await;
        };
        let old = old.clone();
        match random.below(6) {
            0 => self.write(caller, id, file, random).await,
            1 => self.edit(caller, id, file, &old).await,
            2 => self.patch(caller, id, file, &old).await,
            3 => self.search(caller, &old).await,
            4 => self.list(caller).await,
            _ => self.check(caller, file).await,
        }
    }

    /// Checks all files at the end.
    pub(super) async fn check_all(&mut self, caller: &Caller) {
        for file in 0..FILE_COUNT {
            self.settle(caller, file).await;
            self.check(caller, file).await;
        }
    }

    fn path(&self, file: usize) -> String {
        format!("{}/{file}.txt", self.directory)
    }

    fn request_id(&self, id: &str) -> String {
        format!("{}/{id}", self.directory)
    }

    /// Reads a file after a call without an answer: its content is the old or the new one.
    async fn settle(&mut self, caller: &Caller, file: usize) {
        if self.contents[file].len() > 1 {
            self.check(caller, file).await;
        }
    }

    async fn check(&mut self, caller: &Caller, file: usize) {
        let path = self.path(file);
        let found = match read(caller, &path).await {
            Ok(content) => Some(content),
            Err(failure) if failure.reason() == "FILE_NOT_FOUND" => None,
            Err(failure) => {
                caller.tally.interrupted("read_file", failure.reason());
                return;
            }
        };
        let allowed = &mut self.contents[file];
        caller.tally.check_stored(allowed.contains(&found), || {
            format!("{path} has {found:.100?} instead of {allowed:.100?}")
        });
        *allowed = vec![found];
    }

    /// Updates the model after a call that changes a file.
    fn changed<T>(
        &mut self,
        caller: &Caller,
        kind: &'static str,
        file: usize,
        new: String,
        answer: Result<T, CallFailure>,
    ) {
        match answer {
            Ok(_) => self.contents[file] = vec![Some(new)],
            Err(failure) => {
                caller.tally.interrupted(kind, failure.reason());
                self.contents[file].push(Some(new));
            }
        }
    }

    async fn write(&mut self, caller: &Caller, id: &str, file: usize, random: &mut SeededRandom) {
        let new = format!("token {id}\n{}", numbers(random.below(MAX_FILE_LINES)));
        let (path, content) = (self.path(file), new.clone());
        let request = WriteFileRequest { path, content, ..WriteFileRequest::default() };
        let answer = caller
            .call("write_file", Some(&self.request_id(id)), |client| {
                let request = request.clone();
                async move { client.write_file(request).await }
            })
            .await;
        self.changed(caller, "write_file", file, new, answer);
    }

    async fn edit(&mut self, caller: &Caller, id: &str, file: usize, old: &str) {
        let (old_string, new_string) = (first_line(old), format!("token {id}"));
        let new = old.replacen(&old_string, &new_string, 1);
        let edit = Edit {
            old_string: old_string + "\n",
            new_string: new_string + "\n",
            ..Edit::default()
        };
        let path = self.path(file);
        let request = EditFileRequest { path, edits: vec![edit], ..EditFileRequest::default() };
        let answer = caller
            .call("edit_file", Some(&self.request_id(id)), |client| {
                let request = request.clone();
                async move { client.edit_file(request).await }
            })
            .await;
        self.changed(caller, "edit_file", file, new, answer);
    }

    async fn patch(&mut self, caller: &Caller, id: &str, file: usize, old: &str) {
        let (old_line, new_line) = (first_line(old), format!("token {id}"));
        let new = old.replacen(&old_line, &new_line, 1);
        let path = self.path(file);
        let unified_diff =
            format!("--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-{old_line}\n+{new_line}\n");
        let request = ApplyPatchRequest { unified_diff, ..ApplyPatchRequest::default() };
        let answer = caller
            .call("apply_patch", Some(&self.request_id(id)), |client| {
                let request = request.clone();
                async move { client.apply_patch(request).await }
            })
            .await;
        self.changed(caller, "apply_patch", file, new, answer);
    }

    /// Searches the token of a file, which no other file has.
    async fn search(&self, caller: &Caller, content: &str) {
        let request = SearchRequest {
            query: format!("^{}$", first_line(content)),
            is_regex: Some(true),
            path: Some(self.directory.clone()),
            ..SearchRequest::default()
        };
        let answer = caller
            .call("search", None, |client| {
                let request = request.clone();
                async move { client.search(request).await }
            })
            .await;
        match answer {
            Ok(found) => caller.tally.check(found.total_matches == 1, || {
                format!("{} has {} matches", request.query, found.total_matches)
            }),
            Err(failure) => caller.tally.interrupted("search", failure.reason()),
        }
    }

    async fn list(&self, caller: &Caller) {
        let request =
            ListFilesRequest { root: Some(self.directory.clone()), ..ListFilesRequest::default() };
        let answer = caller
            .call("list_files", None, |client| {
                let request = request.clone();
                async move { client.list_files(request).await }
            })
            .await;
        match answer {
            Ok(found) => {
                let contents = self.contents.iter();
                let least = contents.clone().filter(|allowed| !allowed.contains(&None)).count();
                let most = contents.filter(|allowed| **allowed != [None]).count();
                let count = found.files.len();
                caller.tally.check((least..=most).contains(&count), || {
                    format!("{} has {count} files, not {least} to {most}", self.directory)
                });
            }
            Err(failure) => caller.tally.interrupted("list_files", failure.reason()),
        }
    }
}

fn first_line(content: &str) -> String {
    content.lines().next().unwrap_or_default().to_owned()
}
