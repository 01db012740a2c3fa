//! What is left for callers who have little, of what several share: a quarter, of which each of sixteen finds
//! something, however long the others keep theirs.

/// Of so much, one part is the reserve.
const HEADROOM_DIVISOR: u64 = 4;
/// So many callers have something of it.
const HEADROOM_PRINCIPALS: u64 = 16;

/// The reserve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Headroom(u64);

impl Headroom {
    /// None: all is for whoever comes.
    pub(crate) const NONE: Self = Self(0);

    /// That of so much.
    pub(crate) const fn of(most: u64) -> Self {
        Self(most / HEADROOM_DIVISOR)
    }

    /// That of so many places: where there are several, one at least.
    pub(crate) fn of_permits(places: usize) -> Self {
        match places {
            0 | 1 => Self::NONE,
            several => Self(Self::of(several as u64).0.max(1)),
        }
    }

    /// Whether somebody may have `own` in all, where `left` is left then for others.
    pub(crate) fn allows(self, own: u64, left: u64) -> bool {
        left >= self.0 || own <= (self.0 / HEADROOM_PRINCIPALS).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_is_for_those_who_have_little() {
        let reserve = Headroom::of(1600);
        assert!(reserve.allows(1200, 400) && !reserve.allows(1201, 399));
        assert!(reserve.allows(25, 0) && !reserve.allows(26, 0));
        assert!(Headroom::NONE.allows(u64::MAX, 0));
        assert_eq!([1, 2, 3, 8].map(Headroom::of_permits), [0, 1, 1, 2].map(Headroom));
    }
}
