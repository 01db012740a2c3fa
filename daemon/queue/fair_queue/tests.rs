//! Tests of the rules.

use super::*;

fn names() -> [PrincipalKey; 3] {
    ["a", "b", "c"].map(PrincipalKey::from)
}

fn granted(line: &mut FairQueue<u32>) -> Vec<u32> {
    std::iter::from_fn(|| line.grant_next()).map(|(_, waiter)| waiter).collect()
}

#[test]
fn lanes_take_turns_and_each_is_first_come_first_served() {
    let [a, b, c] = names();
    let mut line = FairQueue::new(2, Sharing::Unlimited);
    assert!(
        line.try_acquire(&a, 9)
            && line.try_acquire(&a, 9)
            && !line.try_acquire(&a, 9)
            && !line.try_acquire(&b, 9)
    );
    for (name, waiter) in [(&a, 1), (&a, 2), (&a, 3), (&b, 11), (&b, 12), (&c, 21), (&a, 4)] {
        line.enqueue(name, 9, 9, waiter).unwrap();
    }
    assert!(granted(&mut line).is_empty());
    let mut order = Vec::new();
    for holder in [&a, &a, &b, &c, &a, &b, &a] {
        line.release(holder);
        order.extend(granted(&mut line));
    }
    assert_eq!(order, [11, 21, 1, 12, 2, 3, 4]);
    assert_eq!((line.queued(), line.in_use()), (0, 2));
}

#[test]
fn a_lane_has_no_more_than_it_may_and_does_not_hold_up_others() {
    let [a, b, _] = names();
    let mut line = FairQueue::new(4, Sharing::Unlimited);
    assert!(line.try_acquire(&a, 1) && !line.try_acquire(&a, 1));
    line.enqueue(&a, 1, 9, 1).unwrap();
    // What nobody who waits may have is there for others.
    assert!(line.try_acquire(&b, 9));
    assert!(granted(&mut line).is_empty());
    line.release(&a);
    assert_eq!(granted(&mut line), [1]);
}

#[test]
fn some_places_are_left_for_whoever_comes_next() {
    for (places, first, others) in
        [(1, 1, [0, 0]), (2, 1, [1, 0]), (8, 6, [1, 1]), (2048, 1536, [32, 32])]
    {
        let [a, b, c] = names();
        let mut line = FairQueue::<()>::new(places, Sharing::KeepHeadroom);
        let mut take = |name| (0..).take_while(|_| line.try_acquire(name, usize::MAX)).count();
        assert_eq!(take(&a), first, "{places}");
        assert_eq!([take(&b), take(&c)], others, "{places}");
    }
}

/// In whatever order they come, however much they want, and however long they keep it: as many as have
/// something of the reserve have it, beside one who has all that he can have.
#[test]
fn nobody_finds_nothing_because_others_came_first() {
    let mut random = 1_usize;
    let mut below = |max_queued: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % max_queued
    };
    for places in [2, 3, 4, 8, 15, 34, 63, 64, 100, 512, 2048, 5000] {
        let reserve = (places / 4).max(1);
        let few = (reserve / 16).max(1);
        let callers = (reserve / few).min(16) + 1;
        let names: Vec<PrincipalKey> = (0..callers).map(|name| name.to_string().into()).collect();
        for _ in 0..20 {
            let mut line = FairQueue::<()>::new(places, Sharing::KeepHeadroom);
            for _ in 0..places * 3 {
                // Some want much, and some give something back.
                let name = &names[below(callers).min(below(callers))];
                match below(4) {
                    0 if line.in_use_by(name) > 0 => line.release(name),
                    _ => drop(line.try_acquire(name, usize::MAX)),
                }
            }
            for name in &names {
                while line.try_acquire(name, usize::MAX) {}
                assert!(line.in_use_by(name) >= few, "{places} {name}");
            }
        }
    }
}

#[test]
fn there_can_be_fewer_places_from_now_on() {
    let [a, b, _] = names();
    let mut line = FairQueue::new(4, Sharing::Unlimited);
    assert_eq!((0..9).filter(|_| line.try_acquire(&a, 9)).count(), 4);
    line.reconfigure(2, Sharing::CapWhenContended(1));
    line.enqueue(&b, 9, 9, 1).unwrap();
    for _ in 0..3 {
        line.release(&a);
        assert!(granted(&mut line).is_empty());
    }
    line.release(&a);
    assert_eq!(granted(&mut line), [1]);
}

#[test]
fn who_is_alone_has_all_and_who_is_not_shares() {
    let [a, b, _] = names();
    let mut line = FairQueue::new(4, Sharing::CapWhenContended(1));
    let mut waiter = 0;
    let mut want = |line: &mut FairQueue<u32>, principal: &PrincipalKey| {
        waiter += 1;
        let taken = line.try_acquire(principal, usize::MAX);
        if !taken {
            line.enqueue(principal, usize::MAX, usize::MAX, waiter).unwrap();
        }
        taken
    };
    assert_eq!((0..6).filter(|_| want(&mut line, &a)).count(), 4);
    // The other one waits for those that go on, and for none of those that wait.
    assert!(!want(&mut line, &b));
    for _ in 0..3 {
        line.release(&a);
        assert!(granted(&mut line).is_empty());
    }
    line.release(&a);
    assert_eq!(granted(&mut line), [7]);
    // Then it is the first one's turn, also when the other one wants another at once.
    assert!(!want(&mut line, &b));
    line.release(&b);
    assert_eq!(granted(&mut line), [5]);
    line.release(&a);
    assert_eq!(granted(&mut line), [8]);
    line.release(&b);
    assert_eq!(granted(&mut line), [6]);
}

#[test]
fn many_who_want_little_do_not_keep_one_who_wants_much_from_his_share() {
    let mut line = FairQueue::new(1, Sharing::CapWhenContended(1));
    let flood: PrincipalKey = "flood".into();
    let names: Vec<PrincipalKey> = (0..10).map(|name| name.to_string().into()).collect();
    assert!(line.try_acquire(&flood, 9));
    let mut holder = flood.clone();
    for _ in 0..9 {
        line.enqueue(&flood, usize::MAX, 99, 0).unwrap();
    }
    let mut served = 0;
    for round in 0..100 {
        // Each of them wants one again as soon as he has had one.
        for name in &names {
            if line.queued_by(name) == 0 && *name != holder {
                line.enqueue(name, 9, 9, round).unwrap();
            }
        }
        line.release(&holder);
        (holder, _) = line.grant_next().unwrap();
        served += usize::from(holder == flood);
    }
    assert!((8..=10).contains(&served), "{served}");
}

#[test]
fn a_lane_is_bounded_and_can_be_left() {
    let [a, b, _] = names();
    let mut line = FairQueue::new(1, Sharing::Unlimited);
    assert!(line.try_acquire(&b, 9));
    let first = line.enqueue(&a, 9, 2, 1).unwrap();
    let second = line.enqueue(&a, 9, 2, 2).unwrap();
    assert_eq!(line.enqueue(&a, 9, 2, 3), Err(3));
    line.cancel(&a, first);
    line.cancel(&a, first);
    assert_eq!(line.queued_by(&a), 1);
    line.cancel(&a, second);
    assert_eq!((line.queued(), line.waiting_flow_count()), (0, 0));
    line.release(&b);
    assert_eq!(line.in_use(), 0);
}

/// No place is lost, none is given twice, and nobody waits who could have one.
#[test]
fn whatever_happens_the_places_are_what_they_were() {
    let names = names();
    for seed in 0..200_usize {
        let (at_most, share) = (seed % 7 + 1, seed % 4 + 1);
        let share = match seed % 5 {
            0 => Sharing::CapWhenContended(share.min(at_most)),
            1 => Sharing::Unlimited,
            2 => Sharing::KeepHeadroom,
            _ => Sharing::MultipleOfFree(share),
        };
        let mut line = FairQueue::new(at_most, share);
        let (mut held, mut waiting) = (Vec::new(), Vec::new());
        let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        for step in 0..400 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let name = names[random % 3].clone();
            match random / 3 % 4 {
                0 | 1 => {
                    let most = if &*name == "a" { 2 } else { usize::MAX };
                    if line.try_acquire(&name, most) {
                        held.push(name);
                    } else if let Ok(number) = line.enqueue(&name, most, 5, step) {
                        waiting.push((name, number, step));
                    }
                }
                2 if !held.is_empty() => {
                    let name = held.swap_remove((random >> 8) % held.len());
                    line.release(&name);
                }
                _ if !waiting.is_empty() => {
                    let (name, number, _) = waiting.swap_remove((random >> 8) % waiting.len());
                    line.cancel(&name, number);
                }
                _ => {}
            }
            while let Some((name, step)) = line.grant_next() {
                let position = waiting.iter().position(|(_, _, waits)| *waits == step);
                waiting.remove(position.unwrap());
                held.push(name);
            }
            assert_eq!((line.in_use(), line.queued()), (held.len(), waiting.len()));
            assert!(held.len() <= at_most);
            let of_a = held.iter().filter(|name| &***name == "a").count();
            assert!(of_a <= 2);
            assert!(line.next_flow().is_none());
        }
    }
}
