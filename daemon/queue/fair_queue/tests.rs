//! Tests of fair queueing and of the sharing rules.

use super::*;

fn principals() -> [PrincipalName; 3] {
    ["a", "b", "c"].map(PrincipalName::from)
}

fn grant_all(queue: &mut FairQueue<u32>) -> Vec<u32> {
    std::iter::from_fn(|| queue.grant_next()).map(|(_, waiter)| waiter).collect()
}

#[test]
fn flows_take_turns_and_each_is_first_come_first_served() {
    let [a, b, c] = principals();
    let mut queue = FairQueue::new(2, Sharing::Unlimited);
    assert!(
        queue.try_acquire(&a, 9)
            && queue.try_acquire(&a, 9)
            && !queue.try_acquire(&a, 9)
            && !queue.try_acquire(&b, 9)
    );

    for (principal, waiter) in [(&a, 1), (&a, 2), (&a, 3), (&b, 11), (&b, 12), (&c, 21), (&a, 4)] {
        queue.enqueue(principal, 9, 9, waiter).unwrap();
    }

    assert!(grant_all(&mut queue).is_empty());
    let mut order = Vec::new();
    for holder in [&a, &a, &b, &c, &a, &b, &a] {
        queue.release(holder);
        order.extend(grant_all(&mut queue));
    }

    assert_eq!(order, [11, 21, 1, 12, 2, 3, 4]);
    assert_eq!((queue.queued(), queue.in_use()), (0, 2));
}

#[test]
fn flow_respects_its_limit_and_does_not_block_others() {
    let [a, b, _] = principals();
    let mut queue = FairQueue::new(4, Sharing::Unlimited);
    assert!(queue.try_acquire(&a, 1) && !queue.try_acquire(&a, 1));
    queue.enqueue(&a, 1, 9, 1).unwrap();
    // A permit that no waiter may have is free for others.
    assert!(queue.try_acquire(&b, 9));
    assert!(grant_all(&mut queue).is_empty());
    queue.release(&a);
    assert_eq!(grant_all(&mut queue), [1]);
}

#[test]
fn headroom_is_left_for_the_next_principals() {
    for (permits, first, others) in
        [(1, 1, [0, 0]), (2, 1, [1, 0]), (8, 6, [1, 1]), (2048, 1536, [32, 32])]
    {
        let [a, b, c] = principals();
        let mut queue = FairQueue::<()>::new(permits, Sharing::KeepHeadroom);
        let mut acquire_all =
            |principal| (0..).take_while(|_| queue.try_acquire(principal, usize::MAX)).count();
        assert_eq!(acquire_all(&a), first, "{permits}");
        assert_eq!([acquire_all(&b), acquire_all(&c)], others, "{permits}");
    }
}

/// As many principals as the headroom serves find their part of it, in any order of arrival, demand
/// and hold time. One more principal holds all it can get.
#[test]
fn late_principals_always_find_headroom() {
    let mut random = 1_usize;
    let mut below = |max_queued: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % max_queued
    };

    for permits in [2, 3, 4, 8, 15, 34, 63, 64, 100, 512, 2048, 5000] {
        let headroom = (permits / 4).max(1);
        let guaranteed = (headroom / 16).max(1);
        let callers = (headroom / guaranteed).min(16) + 1;
        let principals: Vec<PrincipalName> =
            (0..callers).map(|principal| principal.to_string().into()).collect();
        for _ in 0..20 {
            let mut queue = FairQueue::<()>::new(permits, Sharing::KeepHeadroom);
            for _ in 0..permits * 3 {
                // Principals with a low index want more. Some permits are released.
                let principal = &principals[below(callers).min(below(callers))];
                match below(4) {
                    0 if queue.in_use_by(principal) > 0 => queue.release(principal),
                    _ => drop(queue.try_acquire(principal, usize::MAX)),
                }
            }
            for principal in &principals {
                while queue.try_acquire(principal, usize::MAX) {}
                assert!(queue.in_use_by(principal) >= guaranteed, "{permits} {principal}");
            }
        }
    }
}

#[test]
fn capacity_can_shrink() {
    let [a, b, _] = principals();
    let mut queue = FairQueue::new(4, Sharing::Unlimited);
    assert_eq!((0..9).filter(|_| queue.try_acquire(&a, 9)).count(), 4);
    queue.reconfigure(2, Sharing::CapWhenContended(1));
    queue.enqueue(&b, 9, 9, 1).unwrap();
    for _ in 0..3 {
        queue.release(&a);
        assert!(grant_all(&mut queue).is_empty());
    }

    queue.release(&a);
    assert_eq!(grant_all(&mut queue), [1]);
}

#[test]
fn single_principal_has_all_and_competing_ones_share() {
    let [a, b, _] = principals();
    let mut queue = FairQueue::new(4, Sharing::CapWhenContended(1));
    let mut waiter = 0;
    let mut want = |queue: &mut FairQueue<u32>, principal: &PrincipalName| {
        waiter += 1;
        let taken = queue.try_acquire(principal, usize::MAX);
        if !taken {
            queue.enqueue(principal, usize::MAX, usize::MAX, waiter).unwrap();
        }

        taken
    };

    assert_eq!((0..6).filter(|_| want(&mut queue, &a)).count(), 4);

    // The second principal waits for the permits in use, not for queued entries.
    assert!(!want(&mut queue, &b));
    for _ in 0..3 {
        queue.release(&a);
        assert!(grant_all(&mut queue).is_empty());
    }

    queue.release(&a);
    assert_eq!(grant_all(&mut queue), [7]);

    // Then the first principal is next, even if the second wants another permit at once.
    assert!(!want(&mut queue, &b));
    queue.release(&b);
    assert_eq!(grant_all(&mut queue), [5]);
    queue.release(&a);
    assert_eq!(grant_all(&mut queue), [8]);
    queue.release(&b);
    assert_eq!(grant_all(&mut queue), [6]);
}

#[test]
fn many_light_principals_do_not_starve_a_heavy_one() {
    let mut queue = FairQueue::new(1, Sharing::CapWhenContended(1));
    let flood: PrincipalName = "flood".into();
    let principals: Vec<PrincipalName> =
        (0..10).map(|principal| principal.to_string().into()).collect();
    assert!(queue.try_acquire(&flood, 9));
    let mut holder = flood.clone();
    for _ in 0..9 {
        queue.enqueue(&flood, usize::MAX, 99, 0).unwrap();
    }

    let mut served = 0;
    for round in 0..100 {
        // Each light principal wants another permit as soon as it has had one.
        for principal in &principals {
            if queue.queued_by(principal) == 0 && *principal != holder {
                queue.enqueue(principal, 9, 9, round).unwrap();
            }
        }

        queue.release(&holder);
        (holder, _) = queue.grant_next().unwrap();
        served += usize::from(holder == flood);
    }

    assert!((8..=10).contains(&served), "{served}");
}

#[test]
fn flow_is_limited_and_waiters_can_leave() {
    let [a, b, _] = principals();
    let mut queue = FairQueue::new(1, Sharing::Unlimited);
    assert!(queue.try_acquire(&b, 9));
    let first = queue.enqueue(&a, 9, 2, 1).unwrap();
    let second = queue.enqueue(&a, 9, 2, 2).unwrap();
    assert_eq!(queue.enqueue(&a, 9, 2, 3), Err(3));
    queue.cancel(&a, first);
    queue.cancel(&a, first);
    assert_eq!(queue.queued_by(&a), 1);
    queue.cancel(&a, second);
    assert_eq!((queue.queued(), queue.waiting_flow_count()), (0, 0));
    queue.release(&b);
    assert_eq!(queue.in_use(), 0);
}

/// No permit is lost or granted twice, and no principal waits that could have one.
#[test]
fn permits_are_conserved_under_random_operations() {
    let principals = principals();
    for seed in 0..200_usize {
        let (capacity, factor) = (seed % 7 + 1, seed % 4 + 1);
        let sharing = match seed % 5 {
            0 => Sharing::CapWhenContended(factor.min(capacity)),
            1 => Sharing::Unlimited,
            2 => Sharing::KeepHeadroom,
            _ => Sharing::MultipleOfFree(factor),
        };
        let mut queue = FairQueue::new(capacity, sharing);
        let (mut held, mut waiting) = (Vec::new(), Vec::new());
        let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        for step in 0..400 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let principal = principals[random % 3].clone();
            match random / 3 % 4 {
                0 | 1 => {
                    let max_in_use = if &*principal == "a" { 2 } else { usize::MAX };
                    if queue.try_acquire(&principal, max_in_use) {
                        held.push(principal);
                    } else if let Ok(waiter_id) = queue.enqueue(&principal, max_in_use, 5, step) {
                        waiting.push((principal, waiter_id, step));
                    }
                }
                2 if !held.is_empty() => {
                    let principal = held.swap_remove((random >> 8) % held.len());
                    queue.release(&principal);
                }
                _ if !waiting.is_empty() => {
                    let (principal, waiter_id, _) =
                        waiting.swap_remove((random >> 8) % waiting.len());
                    queue.cancel(&principal, waiter_id);
                }
                _ => {}
            }

            while let Some((principal, step)) = queue.grant_next() {
                let position =
                    waiting.iter().position(|(_, _, waiting_step)| *waiting_step == step);
                waiting.remove(position.unwrap());
                held.push(principal);
            }

            assert_eq!((queue.in_use(), queue.queued()), (held.len(), waiting.len()));
            assert!(held.len() <= capacity);
            let held_by_a = held.iter().filter(|principal| &***principal == "a").count();
            assert!(held_by_a <= 2);
            assert!(queue.next_flow().is_none());
        }
    }
}
