//! Claims of calls that say much: who comes again with an id while its work goes on needs the answer and nothing
//! else, and there may be many of him.

use std::{future::Future, time::Duration};

use bytes::Bytes;

use super::idempotency::{Claim, ClaimOutcome, Waiter};
use crate::daemon::error::{Error, Reason};

/// When to repeat a call that was not begun: its id is free as soon as the database has that.
pub(super) const RELEASED_RETRY_AFTER: Duration = Duration::from_millis(100);

/// What became of the claim of a call that says something.
#[derive(Debug)]
pub(super) enum PayloadClaimOutcome<S> {
    /// The work is to be done.
    Acquired(Claim, S),
    /// It was done before; see [`Claimed::Answered`].
    Completed { reply: Bytes, is_recent: bool },
    /// See [`Claimed::Lost`].
    Lost(Option<u64>),
}

/// Claims an id by `claim` for a call that `says` something, or waits for the answer of who has it; nothing of
/// what this one says is kept then.
pub(super) async fn claim_with_payload<S, F>(
    claim: impl Fn() -> F,
    says: S,
) -> Result<PayloadClaimOutcome<S>, Error>
where
    F: Future<Output = Result<Result<ClaimOutcome, Waiter>, Error>>,
{
    let mut says = Some(says);
    loop {
        let caller = match claim().await? {
            Ok(ClaimOutcome::Acquired(ticket)) => {
                // Otherwise the ticket gives the id back: nothing was done, and this one cannot do it any more.
                let says = says.ok_or_else(released_error)?;
                return Ok(PayloadClaimOutcome::Acquired(ticket, says));
            }
            Ok(ClaimOutcome::Completed { reply: answer, is_recent }) => {
                return Ok(PayloadClaimOutcome::Completed { reply: answer, is_recent });
            }
            Ok(ClaimOutcome::Lost(step)) => return Ok(PayloadClaimOutcome::Lost(step)),
            Err(caller) => caller,
        };
        says = None;
        if let Some(answer) = caller.wait().await {
            let is_recent = true;
            return Ok(PayloadClaimOutcome::Completed { reply: answer, is_recent });
        }
    }
}

/// What is told to who has waited for somebody else, who has not done it.
fn released_error() -> Error {
    let text = "the call that had this request id before was given up, and was not begun: repeat it with the same id";
    Error::new(Reason::ResourceExhausted, text).retry_after(RELEASED_RETRY_AFTER)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::daemon::{
        pipeline::{
            idempotency::{Idempotency, OnCrash},
            shutdown::Shutdown,
        },
        store::{
            database::Database,
            requests::{KeyFingerprint, RequestIdentity, RequestKey, RequestTable},
            row_retention::RetentionLimits,
        },
        task,
    };

    #[tokio::test]
    async fn who_waits_for_another_keeps_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let database = Database::open(&folder.path().join("jig.db"), false).unwrap();
        let bounds = RetentionLimits {
            max_age: Duration::from_secs(3600),
            max_rows: 100,
            max_bytes: 1 << 20,
        };
        let log = RequestTable::open(database, bounds).await.unwrap();
        let ids = Idempotency::new(log, Duration::from_secs(60), &Shutdown::default());
        let key = RequestKey {
            principal: "p".to_owned(),
            workspace: "w".to_owned(),
            id: "id".to_owned(),
            key_fingerprint: KeyFingerprint::default(),
        };
        let asked = RequestIdentity {
            method: "m".to_owned(),
            session: "s".to_owned(),
            fingerprint: [1; 32],
        };
        let claim = |says: Arc<str>| {
            let (ids, key, asked) = (Arc::clone(&ids), key.clone(), asked.clone());
            async move {
                let claim = || ids.try_claim(&key, &asked, OnCrash::Report, None);
                claim_with_payload(claim, says).await
            }
        };
        let says: Arc<str> = "much".into();
        let Ok(PayloadClaimOutcome::Acquired(ticket, kept)) = claim(Arc::clone(&says)).await else {
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
            assert_eq!(refused.retry_after, Some(RELEASED_RETRY_AFTER));
        }
        // Who comes when he is told to finds it given back.
        let mut again = claim(Arc::clone(&says)).await;
        while let Err(refused) = &again {
            tokio::time::sleep(refused.retry_after.unwrap()).await;
            again = claim(Arc::clone(&says)).await;
        }
        assert!(matches!(again, Ok(PayloadClaimOutcome::Acquired(..))), "{again:?}");
    }
}
