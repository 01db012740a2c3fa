//! What approvers see of a call: the full parameters, or an excerpt that fits a limit.

use crate::daemon::store::approvals::ApprovalParameter;

/// Limit on the parameters, and on the file names, that are stored, listed and streamed.
pub(crate) const MAX_STORED_PREVIEW_BYTES: usize = 16 << 10;
/// The same limit for a client that gets one approval: the longest possible command.
pub(crate) const MAX_FULL_PREVIEW_BYTES: usize = 1 << 20;
/// Limit on the file names that are stored.
const MAX_STORED_FILES: usize = 100;

/// The parameters and files of a call, without secrets.
#[derive(Debug, Clone, Default)]
pub(crate) struct ApprovalPreview {
    pub(crate) parameters: Vec<(String, String)>,
    /// Files that the call names.
    pub(crate) files: Vec<String>,
}

/// A preview that fits a limit.
#[derive(Debug)]
pub(crate) struct PreviewExcerpt {
    pub(crate) parameters: Vec<ApprovalParameter>,
    /// The first files.
    pub(crate) files: Vec<String>,
    /// Number of files that are left out.
    pub(crate) more_files: u32,
}

impl ApprovalPreview {
    /// Returns the excerpt for the database, lists and streams.
    pub(crate) fn to_stored(&self) -> PreviewExcerpt {
        self.truncated_to(MAX_STORED_PREVIEW_BYTES, MAX_STORED_FILES)
    }

    /// Returns as much of the preview as a message can hold.
    pub(crate) fn to_full(&self) -> PreviewExcerpt {
        self.truncated_to(MAX_FULL_PREVIEW_BYTES, usize::MAX)
    }

    /// Limits the parameters to `bytes`, and the file names to `bytes`. Shortens the longest
    /// values.
    fn truncated_to(&self, bytes: usize, max_files: usize) -> PreviewExcerpt {
        let total = |longest: usize| -> usize {
            self.parameters.iter().map(|(_, value)| value.len().min(longest)).sum()
        };

        let mut longest = bytes;
        while total(longest) > bytes && longest > 1 {
            longest /= 2;
        }

        let mut remaining = bytes;
        let files: Vec<_> = self
            .files
            .iter()
            .take(max_files)
            .take_while(|file| {
                let fits = file.len() <= remaining;
                remaining = remaining.saturating_sub(file.len());
                fits
            })
            .cloned()
            .collect();

        PreviewExcerpt {
            parameters: self
                .parameters
                .iter()
                .map(|(name, value)| truncated_parameter(name, value, longest))
                .collect(),
            more_files: u32::try_from(self.files.len() - files.len()).unwrap_or(u32::MAX),
            files,
        }
    }
}

/// Returns the full value, or its beginning and its end.
fn truncated_parameter(name: &str, value: &str, longest: usize) -> ApprovalParameter {
    let name = name.to_owned();
    if value.len() <= longest {
        return ApprovalParameter { name, value: value.to_owned(), ..ApprovalParameter::default() };
    }

    let beginning = value.get(..value.floor_char_boundary(longest / 3 * 2));
    let ending = value.get(value.ceil_char_boundary(value.len() - longest / 3)..);
    let (beginning, ending) = (beginning.unwrap_or_default(), ending.unwrap_or_default());
    let omitted = value.len() - beginning.len() - ending.len();

    ApprovalParameter {
        name,
        value: beginning.to_owned(),
        omitted_bytes: u32::try_from(omitted).unwrap_or(u32::MAX),
        ending: ending.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_value_is_shown_by_its_beginning_and_end() {
        let value = format!("a{}z", "é".repeat(MAX_STORED_PREVIEW_BYTES));
        let preview = ApprovalPreview {
            parameters: vec![
                ("command".to_owned(), value.clone()),
                ("cwd".to_owned(), "here".to_owned()),
            ],
            files: (0..250).map(|number| format!("file-{number}")).collect(),
        };
        let stored = preview.to_stored();
        let command = &stored.parameters[0];
        assert!(command.value.starts_with('a') && command.ending.ends_with('z'));
        let shown_bytes = command.value.len() + command.ending.len();
        assert_eq!(shown_bytes + command.omitted_bytes as usize, value.len());
        assert!(
            (MAX_STORED_PREVIEW_BYTES / 4..=MAX_STORED_PREVIEW_BYTES).contains(&shown_bytes),
            "{shown_bytes}"
        );

        assert_eq!(stored.parameters[1].value, "here");
        assert_eq!((stored.files.len(), stored.more_files), (100, 150));
        let full = preview.to_full();
        assert_eq!((full.files.len(), full.more_files), (250, 0));
        assert_eq!(full.parameters[0].value, value);
        assert_eq!(full.parameters[0].omitted_bytes, 0);
    }

    #[test]
    fn file_names_are_limited_in_bytes() {
        let preview =
            ApprovalPreview { files: vec!["x".repeat(4096); 9], ..ApprovalPreview::default() };
        let stored = preview.to_stored();
        assert_eq!((stored.files.len(), stored.more_files), (4, 5));
    }
}
