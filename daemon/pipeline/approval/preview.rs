//! What people are shown of a call that waits: all of it, or as much as there is room for.

use crate::daemon::store::approvals::ApprovalParameter;

/// Bytes of the parameters, and of the names of files, that are kept, listed and streamed.
pub(crate) const MAX_STORED_PREVIEW_BYTES: usize = 16 << 10;
/// Bytes of each of them that are shown at most, to who asks for all: a command can have no more.
pub(crate) const MAX_FULL_PREVIEW_BYTES: usize = 1 << 20;
/// Most files of those that are kept.
const MAX_STORED_FILES: usize = 100;

/// What there is to be shown: it holds nothing that may be secret.
#[derive(Debug, Clone, Default)]
pub(crate) struct ApprovalPreview {
    /// Names and values of the parameters.
    pub(crate) parameters: Vec<(String, String)>,
    /// Files that the call names.
    pub(crate) files: Vec<String>,
}

/// What is shown of it.
#[derive(Debug)]
pub(crate) struct PreviewExcerpt {
    /// The parameters.
    pub(crate) parameters: Vec<ApprovalParameter>,
    /// The first files.
    pub(crate) files: Vec<String>,
    /// How many more there are.
    pub(crate) more_files: u32,
}

impl ApprovalPreview {
    /// What is kept of it.
    pub(crate) fn to_stored(&self) -> PreviewExcerpt {
        self.truncated_to(MAX_STORED_PREVIEW_BYTES, MAX_STORED_FILES)
    }

    /// As much of it as can be shown.
    pub(crate) fn to_full(&self) -> PreviewExcerpt {
        self.truncated_to(MAX_FULL_PREVIEW_BYTES, usize::MAX)
    }

    /// So many bytes of the parameters, the longest of them shortened, and of the names of files.
    fn truncated_to(&self, bytes: usize, most_files: usize) -> PreviewExcerpt {
        let total = |longest: usize| -> usize {
            let values = self.parameters.iter();
            values.map(|(_, value)| value.len().min(longest)).sum()
        };
        let mut longest = bytes;
        while total(longest) > bytes && longest > 1 {
            longest /= 2;
        }
        let mut left = bytes;
        let files = self.files.iter().take(most_files).take_while(|file| {
            let fits = file.len() <= left;
            left = left.saturating_sub(file.len());
            fits
        });
        let files: Vec<_> = files.cloned().collect();
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

/// The whole of a value, or its beginning and its end.
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
    fn what_is_too_long_is_shown_by_both_its_ends() {
        let value = format!("a{}z", "é".repeat(MAX_STORED_PREVIEW_BYTES));
        let shown = ApprovalPreview {
            parameters: vec![
                ("command".to_owned(), value.clone()),
                ("cwd".to_owned(), "here".to_owned()),
            ],
            files: (0..250).map(|number| format!("file-{number}")).collect(),
        };
        let kept = shown.to_stored();
        let command = &kept.parameters[0];
        assert!(command.value.starts_with('a') && command.ending.ends_with('z'));
        let shown_bytes = command.value.len() + command.ending.len();
        assert_eq!(shown_bytes + command.omitted_bytes as usize, value.len());
        assert!(
            (MAX_STORED_PREVIEW_BYTES / 4..=MAX_STORED_PREVIEW_BYTES).contains(&shown_bytes),
            "{shown_bytes}"
        );
        assert_eq!(kept.parameters[1].value, "here");
        assert_eq!((kept.files.len(), kept.more_files), (100, 150));
        let whole = shown.to_full();
        assert_eq!((whole.files.len(), whole.more_files), (250, 0));
        assert_eq!(whole.parameters[0].value, value);
        assert_eq!(whole.parameters[0].omitted_bytes, 0);
    }

    #[test]
    fn names_of_files_are_bounded_in_bytes() {
        let shown =
            ApprovalPreview { files: vec!["x".repeat(4096); 9], ..ApprovalPreview::default() };
        let kept = shown.to_stored();
        assert_eq!((kept.files.len(), kept.more_files), (4, 5));
    }
}
