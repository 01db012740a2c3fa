//! Headroom: the quarter of a shared limit that is reserved for callers that use little of the
//! limit. Each of sixteen callers may use a sixteenth of the headroom, even while other callers use
//! all the rest.

/// The headroom is the limit divided by this.
const HEADROOM_DIVISOR: u64 = 4;
/// Number of callers that the headroom is enough for.
const HEADROOM_PRINCIPALS: u64 = 16;

/// The amount that is reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Headroom(u64);

impl Headroom {
    /// No headroom: any caller may take all.
    pub(crate) const NONE: Self = Self(0);

    /// The headroom of a limit.
    pub(crate) const fn of(limit: u64) -> Self {
        Self(limit / HEADROOM_DIVISOR)
    }

    /// The headroom of a number of permits: at least one if there are several.
    pub(crate) fn of_permits(permits: usize) -> Self {
        match permits {
            0 | 1 => Self::NONE,
            several => Self(Self::of(several as u64).0.max(1)),
        }
    }

    /// Whether a caller may hold `own` in total if that leaves `free` for others.
    pub(crate) fn allows(self, own: u64, free: u64) -> bool {
        free >= self.0 || own <= (self.0 / HEADROOM_PRINCIPALS).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quarter_is_reserved_for_callers_that_use_little() {
        let headroom = Headroom::of(1600);
        assert!(headroom.allows(1200, 400) && !headroom.allows(1201, 399));
        assert!(headroom.allows(25, 0) && !headroom.allows(26, 0));
        assert!(Headroom::NONE.allows(u64::MAX, 0));
        assert_eq!([1, 2, 3, 8].map(Headroom::of_permits), [0, 1, 1, 2].map(Headroom));
    }
}
