//! Calls that the fairness benchmark makes.

use std::{
    fs, io,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

use clap::ValueEnum;
use jig::{
    api::v1::{
        CreateDirectoryRequest, ListDirectoryRequest, ListFilesRequest, ReadFileRequest,
        RunRequest, SearchRequest,
    },
    client::{CallError, Client},
};

/// Name of the file that is read.
const TEST_FILE: &str = "read";
const TEST_FILE_BYTES: usize = 10 * 1024;

/// Kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum FairBenchCase {
    Run,
    ReadFile,
    ListDirectory,
    Search,
    ListFiles,
    CreateDirectory,
}

/// Creates the file that is read.
pub(super) fn create_test_file(workspace: &Path) -> io::Result<()> {
    fs::write(workspace.join(TEST_FILE), vec![b'x'; TEST_FILE_BYTES])
}

impl FairBenchCase {
    /// Returns the name of the tool.
    pub(super) fn tool_name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::ReadFile => "read_file",
            Self::ListDirectory => "list_dir",
            Self::Search => "search",
            Self::ListFiles => "list_files",
            Self::CreateDirectory => "create_directory",
        }
    }

    /// Makes one call.
    pub(super) async fn call(self, client: &Client) -> Result<(), CallError> {
        match self {
            Self::Run => {
                let argv = vec!["/bin/true".to_owned()];
                let request = RunRequest { argv, ..RunRequest::default() };
                client.run(request).await.map(drop)
            }
            Self::ReadFile => {
                let path = TEST_FILE.to_owned();
                let request = ReadFileRequest { path, ..ReadFileRequest::default() };
                client.read_file(request).await.map(drop)
            }
            Self::ListDirectory => {
                let request = ListDirectoryRequest::default();
                client.list_directory(request).await.map(drop)
            }
            Self::Search => {
                let query = "no such text".to_owned();
                let request = SearchRequest { query, ..SearchRequest::default() };
                client.search(request).await.map(drop)
            }
            Self::ListFiles => {
                let root = Some("tree".to_owned());
                let request = ListFilesRequest { root, ..ListFilesRequest::default() };
                client.list_files(request).await.map(drop)
            }
            Self::CreateDirectory => {
                static NEXT_DIRECTORY: AtomicU64 = AtomicU64::new(0);
                let number = NEXT_DIRECTORY.fetch_add(1, Ordering::Relaxed);
                let path = format!("made/{}-{}/{number}", std::process::id(), number / 1000);
                let request = CreateDirectoryRequest { path };
                client.create_directory(request).await.map(drop)
            }
        }
    }
}
