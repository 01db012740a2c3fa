//! Claims of calls that say much: who comes again with an id while its work goes on needs the answer and nothing
//! else, and there may be many of him.

use std::{future::Future, time::Duration};

use bytes::Bytes;

use super::idempotency::{Caller, Claimed, Ticket};
use crate::daemon::error::{Error, Reason};

/// When to repeat a call that was not begun: its id is free as soon as the database has that.
pub(super) const FREE_AGAIN: Duration = Duration::from_millis(100);

/// What became of the claim of a call that says something.
#[derive(Debug)]
pub(super) enum Claim<S> {
    /// The work is to be done.
    Ours(Ticket, S),
    /// It was done before; see [`Claimed::Answered`].
    Answered { answer: Bytes, is_recent: bool },
    /// See [`Claimed::Lost`].
    Lost(Option<u64>),
}

/// Claims an id by `claim` for a call that `says` something, or waits for the answer of who has it; nothing of
/// what this one says is kept then.
pub(super) async fn claim_for<S, F>(claim: impl Fn() -> F, says: S) -> Result<Claim<S>, Error>
where
    F: Future<Output = Result<Result<Claimed, Caller>, Error>>,
{
    let mut says = Some(says);
    loop {
        let caller = match claim().await? {
            Ok(Claimed::Ours(ticket)) => {
                // Otherwise the ticket gives the id back: nothing was done, and this one cannot do it any more.
                let says = says.ok_or_else(given_up)?;
                return Ok(Claim::Ours(ticket, says));
            }
            Ok(Claimed::Answered { answer, is_recent }) => {
                return Ok(Claim::Answered { answer, is_recent });
            }
            Ok(Claimed::Lost(step)) => return Ok(Claim::Lost(step)),
            Err(caller) => caller,
        };
        says = None;
        if let Some(answer) = caller.wait().await {
            let is_recent = true;
            return Ok(Claim::Answered { answer, is_recent });
        }
    }
}

/// What is told to who has waited for somebody else, who has not done it.
fn given_up() -> Error {
    let text = "the call that had this request id before was given up, and was not begun: repeat it with the same id";
    Error::new(Reason::ResourceExhausted, text).retry_after(FREE_AGAIN)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::daemon::{
        call::{
            drain::Drain,
            idempotency::{Idempotency, Lost},
        },
        store::{
            database::Database,
            keeping::Bounds,
            requests::{Asked, Holder, Key, RequestLog},
        },
        task,
    };

    #[tokio::test]
    async fn who_waits_for_another_keeps_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let database = Database::open(&folder.path().join("jig.db"), false).unwrap();
        let bounds = Bounds { age: Duration::from_secs(3600), number: 100, bytes: 1 << 20 };
        let log = RequestLog::open(database, bounds).await.unwrap();
        let ids = Idempotency::new(log, Duration::from_secs(60), &Drain::default());
        let key = Key {
            principal: "p".to_owned(),
            workspace: "w".to_owned(),
            id: "id".to_owned(),
            holder: Holder::default(),
        };
        let asked = Asked { method: "m".to_owned(), session: "s".to_owned(), fingerprint: [1; 32] };
        let claim = |says: Arc<str>| {
            let (ids, key, asked) = (Arc::clone(&ids), key.clone(), asked.clone());
            async move {
                let claim = || ids.claim_now(&key, &asked, Lost::IsTold, None);
                claim_for(claim, says).await
            }
        };
        let says: Arc<str> = "much".into();
        let Ok(Claim::Ours(ticket, kept)) = claim(Arc::clone(&says)).await else {
            panic!("the first has it");
        };
        assert_eq!(Arc::strong_count(&says), 2);
        drop(kept);
        let repeats = [(); 3].map(|()| task::spawn_tracked("repeat", claim(Arc::clone(&says))));
        let let_go = async {
            while Arc::strong_count(&says) > 1 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), let_go).await.unwrap();
        // It is not done after all: nobody is left who knows what to do.
        drop(ticket);
        for repeat in repeats {
            let refused = repeat.await.unwrap().unwrap_err();
            assert_eq!(refused.reason, Reason::ResourceExhausted);
            assert_eq!(refused.retry_after, Some(FREE_AGAIN));
        }
        // Who comes when he is told to finds it given back.
        let mut again = claim(Arc::clone(&says)).await;
        while let Err(refused) = &again {
            tokio::time::sleep(refused.retry_after.unwrap()).await;
            again = claim(Arc::clone(&says)).await;
        }
        assert!(matches!(again, Ok(Claim::Ours(..))), "{again:?}");
    }
}
