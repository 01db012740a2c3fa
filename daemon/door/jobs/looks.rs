//! Looking for jobs, of which few do at one time: the database does one thing after the other, for all, and
//! who looks for jobs must not keep others from having their calls recorded.

use std::sync::Arc;

use crate::daemon::{
    call::access::principal::Principal,
    error::{Error, Reason},
    queue::{Entry, Place, Queue, Share},
};

/// Those who look: one, and another whose answer is on its way meanwhile.
const AT_ONCE: usize = 2;
/// Looks of one caller that wait; each takes milliseconds.
const WAITING: usize = 1024;

/// Those who look.
#[derive(Debug)]
pub(super) struct Looks(Arc<Queue>);

impl Default for Looks {
    fn default() -> Self {
        Self(Queue::new(AT_ONCE, Share::All, WAITING))
    }
}

impl Looks {
    /// Waits for a turn.
    pub(super) async fn enter(&self, principal: &Principal) -> Result<Place, Error> {
        let full = match self.0.enter(principal.lane(), usize::MAX) {
            Ok(Entry::Place(place)) => return Ok(place),
            Ok(Entry::Wait(mut waiting)) => return Ok(waiting.place().await),
            Err(full) => full,
        };
        let text = format!(
            "{} looks for jobs {} times already: retry after the time given, with fewer at a time",
            principal.name(),
            full.held + full.waiting
        );
        Err(Error::new(Reason::ResourceExhausted, text)
            .with("limit", WAITING.to_string())
            .retry_after(full.retry_after))
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::{Pin, pin},
        task::{Context, Poll, Waker},
    };

    use super::*;
    use crate::daemon::call::access::{Access, Origin, Trust};

    fn now<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[test]
    fn who_looks_often_keeps_others_waiting_for_one_look() {
        let access =
            Access::new(Trust { own: Some(1000), loopback: false, commands_are_apart: true });
        let [often, once] =
            [1000, 0].map(|uid| access.admit(None, Origin::Socket { uid }).unwrap());
        let looks = Looks::default();
        let first: Vec<_> =
            (0..AT_ONCE).map(|_| now(pin!(looks.enter(&often))).unwrap().unwrap()).collect();
        let mut waiting: Vec<_> = (0..WAITING).map(|_| Box::pin(looks.enter(&often))).collect();
        assert!(waiting.iter_mut().all(|it| now(it.as_mut()).is_none()));
        let refused = now(pin!(looks.enter(&often))).unwrap().unwrap_err();
        assert_eq!(refused.reason, Reason::ResourceExhausted);
        assert!(refused.retry_after.is_some());
        let mut other = pin!(looks.enter(&once));
        assert!(now(other.as_mut()).is_none());
        drop(first);
        let _turn = now(other).expect("it is its turn").unwrap();
        let turns: Vec<_> = waiting.iter_mut().filter_map(|it| now(it.as_mut())).collect();
        assert_eq!(turns.len(), AT_ONCE - 1);
    }
}
