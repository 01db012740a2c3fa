//! Who has a place, who waits for one, and whose turn it is: the rules, without anything that waits.
//!
//! Each caller has a lane. A free place goes to the lane that has had the fewest, and in it to whom has
//! waited longest. Lanes are compared by start-time fair queueing (Goyal, Vin and Cheng, 1996): each place
//! moves its lane's tag on by one, and a lane that wants one after a pause begins where the others are, so
//! that nobody saves up places while he wants none, and nobody is late who has just come.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

/// What tells one caller's lane from another's.
pub(crate) type Name = Arc<str>;

/// Places, and who waits for them. `W` is how somebody who waits is told.
#[derive(Debug)]
pub(super) struct Line<W> {
    taken: usize,
    at_most: usize,
    share: Share,
    lanes: HashMap<Name, Lane<W>>,
    /// The lanes in which somebody waits, in the order in which they began to.
    turns: Vec<Name>,
    /// Where the lanes are that want places.
    now: u64,
    waiting: usize,
    last: u64,
}

/// What one caller may have, so that there is something for others.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Share {
    /// All: there is nobody else.
    All,
    /// All but a quarter, which is there for those who have few: of 2048, 1536 for the first, and 32 for each
    /// of 16 who come when he has them, however long he keeps them. Where there are several, one is left at
    /// least.
    Reserve,
    /// This many times as many places as he leaves free. For what does not last: the third to come finds
    /// little.
    OfFree(usize),
    /// All while he is alone; where others have or want some, all callers together have so many.
    Alone(usize),
}

/// Of so many places, one is in the reserve.
const RESERVE: usize = 4;
/// So many callers have something of it.
const IN_RESERVE: usize = 16;
/// Lanes above which those are looked for that can be forgotten.
const MANY: usize = 1024;

#[derive(Debug)]
struct Lane<W> {
    /// Where it is among the others, when it wants a place.
    tag: u64,
    held: usize,
    /// Most that it may have, whatever is free.
    most: usize,
    /// With numbers by which they leave.
    waiting: VecDeque<(u64, W)>,
}

impl<W> Line<W> {
    /// So many places, none of them taken.
    pub(super) fn new(at_most: usize, share: Share) -> Self {
        Self {
            taken: 0,
            at_most,
            share,
            lanes: HashMap::new(),
            turns: Vec::new(),
            now: 0,
            waiting: 0,
            last: 0,
        }
    }

    /// Has so many places from now on. Nobody loses his: if there are more than that, those that are given
    /// back are not given to others.
    pub(super) fn change(&mut self, at_most: usize, share: Share) {
        self.at_most = at_most;
        self.share = share;
    }

    /// Takes a place, if one is free that nobody waits for who could have it, and the lane may have
    /// another one. `most` counts from now on.
    pub(super) fn take(&mut self, name: &Name, most: usize) -> bool {
        self.lane(name, most);
        let is_next = self.lanes.get(name).is_some_and(|lane| {
            lane.waiting.is_empty() && self.next_turn().is_none() && self.may_take(lane)
        });
        if is_next {
            self.serve(name);
        } else {
            self.forget(name);
        }
        is_next
    }

    /// Lets somebody wait behind the others of his lane, unless `bound` wait there already. Answers the
    /// number to leave with.
    pub(super) fn wait(
        &mut self,
        name: &Name,
        most: usize,
        bound: usize,
        waiter: W,
    ) -> Result<u64, W> {
        let number = self.last + 1;
        let lane = self.lane(name, most);
        if lane.waiting.len() >= bound {
            self.forget(name);
            return Err(waiter);
        }
        lane.waiting.push_back((number, waiter));
        let is_first = lane.waiting.len() == 1;
        self.last = number;
        self.waiting += 1;
        if is_first {
            self.turns.push(Arc::clone(name));
        }
        Ok(number)
    }

    /// Takes somebody out who waits. He may have got a place meanwhile.
    pub(super) fn leave(&mut self, name: &Name, number: u64) {
        let Some(lane) = self.lanes.get_mut(name) else {
            return;
        };
        let Ok(position) = lane
            .waiting
            .binary_search_by_key(&number, |(number, _)| *number)
        else {
            return;
        };
        lane.waiting.remove(position);
        self.waiting -= 1;
        if lane.waiting.is_empty() {
            self.turns.retain(|turn| turn != name);
            self.forget(name);
        }
    }

    /// Takes a place back.
    pub(super) fn give_back(&mut self, name: &Name) {
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.held -= 1;
            self.taken -= 1;
            self.forget(name);
        }
    }

    /// Gives a free place to whose turn it is, if there is one and somebody who may have it.
    pub(super) fn next(&mut self) -> Option<(Name, W)> {
        let position = self.next_turn()?;
        let name = self.turns.remove(position);
        let lane = self.lanes.get_mut(&name)?;
        let (_, waiter) = lane.waiting.pop_front()?;
        self.waiting -= 1;
        if !lane.waiting.is_empty() {
            self.turns.push(Arc::clone(&name));
        }
        self.serve(&name);
        Some((name, waiter))
    }

    /// Places that there are.
    pub(super) fn at_most(&self) -> usize {
        self.at_most
    }

    /// Places that are taken.
    pub(super) fn held(&self) -> usize {
        self.taken
    }

    /// Places that a lane has.
    pub(super) fn held_by(&self, name: &Name) -> usize {
        self.lanes.get(name).map_or(0, |lane| lane.held)
    }

    /// Those who wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Those who wait in a lane.
    pub(super) fn waiting_of(&self, name: &Name) -> usize {
        self.lanes.get(name).map_or(0, |lane| lane.waiting.len())
    }

    /// Lanes in which somebody waits.
    pub(super) fn lanes_waiting(&self) -> usize {
        self.turns.len()
    }

    /// Where the lane stands that gets the next place.
    fn next_turn(&self) -> Option<usize> {
        let lanes = self.turns.iter().enumerate();
        let lanes = lanes.filter_map(|(position, name)| {
            let lane = self.lanes.get(name)?;
            self.may_take(lane).then_some((lane.tag, position))
        });
        // Of those that have had as many, the one that has waited for longer.
        lanes.min().map(|(_, position)| position)
    }

    /// Whether a lane may have another place.
    fn may_take(&self, lane: &Lane<W>) -> bool {
        let free = self.at_most.saturating_sub(self.taken);
        let fits = match self.share {
            Share::All => true,
            Share::Reserve => {
                let reserve = reserve(self.at_most);
                free > reserve || lane.held < (reserve / IN_RESERVE).max(1)
            }
            Share::OfFree(times) => lane.held < times.saturating_mul(free),
            Share::Alone(together) => {
                let others_wait = self.turns.len() > usize::from(!lane.waiting.is_empty());
                self.taken < together || lane.held == self.taken && !others_wait
            }
        };
        free > 0 && lane.held < lane.most && fits
    }

    /// Gives a lane a place.
    fn serve(&mut self, name: &Name) {
        if let Some(lane) = self.lanes.get_mut(name) {
            self.now = self.now.max(lane.tag);
            lane.tag += 1;
            lane.held += 1;
            self.taken += 1;
        }
        if self.lanes.len() > MANY {
            let now = self.now;
            self.lanes.retain(|_, lane| !lane.is_idle(now));
        }
    }

    fn lane(&mut self, name: &Name, most: usize) -> &mut Lane<W> {
        let now = self.now;
        let lane = self.lanes.entry(Arc::clone(name)).or_insert_with(|| Lane {
            tag: now,
            held: 0,
            most,
            waiting: VecDeque::new(),
        });
        lane.most = most;
        if lane.waiting.is_empty() {
            lane.tag = lane.tag.max(now);
        }
        lane
    }

    /// Forgets a lane that has nothing and wants nothing.
    fn forget(&mut self, name: &Name) {
        let now = self.now;
        if self.lanes.get(name).is_some_and(|lane| lane.is_idle(now)) {
            self.lanes.remove(name);
        }
    }
}

impl<W> Lane<W> {
    /// Whether nothing is lost with it: it has nothing, wants nothing, and is not before the others.
    fn is_idle(&self, now: u64) -> bool {
        self.held == 0 && self.waiting.is_empty() && self.tag <= now
    }
}

/// Places, of so many, that are there for those who have few.
fn reserve(places: usize) -> usize {
    match places {
        0 | 1 => 0,
        several => (several / RESERVE).max(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> [Name; 3] {
        ["a", "b", "c"].map(Name::from)
    }

    fn granted(line: &mut Line<u32>) -> Vec<u32> {
        std::iter::from_fn(|| line.next())
            .map(|(_, waiter)| waiter)
            .collect()
    }

    #[test]
    fn lanes_take_turns_and_each_is_first_come_first_served() {
        let [a, b, c] = names();
        let mut line = Line::new(2, Share::All);
        assert!(line.take(&a, 9) && line.take(&a, 9) && !line.take(&a, 9) && !line.take(&b, 9));
        for (name, waiter) in [
            (&a, 1),
            (&a, 2),
            (&a, 3),
            (&b, 11),
            (&b, 12),
            (&c, 21),
            (&a, 4),
        ] {
            line.wait(name, 9, 9, waiter).unwrap();
        }
        assert!(granted(&mut line).is_empty());
        let mut order = Vec::new();
        for holder in [&a, &a, &b, &c, &a, &b, &a] {
            line.give_back(holder);
            order.extend(granted(&mut line));
        }
        assert_eq!(order, [11, 21, 1, 12, 2, 3, 4]);
        assert_eq!((line.waiting(), line.held()), (0, 2));
    }

    #[test]
    fn a_lane_has_no_more_than_it_may_and_does_not_hold_up_others() {
        let [a, b, _] = names();
        let mut line = Line::new(4, Share::All);
        assert!(line.take(&a, 1) && !line.take(&a, 1));
        line.wait(&a, 1, 9, 1).unwrap();
        // What nobody who waits may have is there for others.
        assert!(line.take(&b, 9));
        assert!(granted(&mut line).is_empty());
        line.give_back(&a);
        assert_eq!(granted(&mut line), [1]);
    }

    #[test]
    fn some_places_are_left_for_whoever_comes_next() {
        for (places, first, others) in [
            (1, 1, [0, 0]),
            (2, 1, [1, 0]),
            (8, 6, [1, 1]),
            (2048, 1536, [32, 32]),
        ] {
            let [a, b, c] = names();
            let mut line = Line::<()>::new(places, Share::Reserve);
            let mut take = |name| (0..).take_while(|_| line.take(name, usize::MAX)).count();
            assert_eq!(take(&a), first, "{places}");
            assert_eq!([take(&b), take(&c)], others, "{places}");
        }
    }

    /// In whatever order they come, however much they want, and however long they keep it: as many as have
    /// something of the reserve have it, beside one who has all that he can have.
    #[test]
    fn nobody_finds_nothing_because_others_came_first() {
        let mut random = 1_usize;
        let mut below = |bound: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % bound
        };
        for places in [2, 3, 4, 8, 15, 34, 63, 64, 100, 512, 2048, 5000] {
            let reserve = reserve(places);
            let few = (reserve / IN_RESERVE).max(1);
            let callers = (reserve / few).min(IN_RESERVE) + 1;
            let names: Vec<Name> = (0..callers).map(|name| name.to_string().into()).collect();
            for _ in 0..20 {
                let mut line = Line::<()>::new(places, Share::Reserve);
                for _ in 0..places * 3 {
                    // Some want much, and some give something back.
                    let name = &names[below(callers).min(below(callers))];
                    match below(4) {
                        0 if line.held_by(name) > 0 => line.give_back(name),
                        _ => drop(line.take(name, usize::MAX)),
                    }
                }
                for name in &names {
                    while line.take(name, usize::MAX) {}
                    assert!(line.held_by(name) >= few, "{places} {name}");
                }
            }
        }
    }

    #[test]
    fn there_can_be_fewer_places_from_now_on() {
        let [a, b, _] = names();
        let mut line = Line::new(4, Share::All);
        assert_eq!((0..9).filter(|_| line.take(&a, 9)).count(), 4);
        line.change(2, Share::Alone(1));
        line.wait(&b, 9, 9, 1).unwrap();
        for _ in 0..3 {
            line.give_back(&a);
            assert!(granted(&mut line).is_empty());
        }
        line.give_back(&a);
        assert_eq!(granted(&mut line), [1]);
    }

    #[test]
    fn who_is_alone_has_all_and_who_is_not_shares() {
        let [a, b, _] = names();
        let mut line = Line::new(4, Share::Alone(1));
        let mut waiter = 0;
        let mut want = |line: &mut Line<u32>, name: &Name| {
            waiter += 1;
            let taken = line.take(name, usize::MAX);
            if !taken {
                line.wait(name, usize::MAX, usize::MAX, waiter).unwrap();
            }
            taken
        };
        assert_eq!((0..6).filter(|_| want(&mut line, &a)).count(), 4);
        // The other one waits for those that go on, and for none of those that wait.
        assert!(!want(&mut line, &b));
        for _ in 0..3 {
            line.give_back(&a);
            assert!(granted(&mut line).is_empty());
        }
        line.give_back(&a);
        assert_eq!(granted(&mut line), [7]);
        // Then it is the first one's turn, also when the other one wants another at once.
        assert!(!want(&mut line, &b));
        line.give_back(&b);
        assert_eq!(granted(&mut line), [5]);
        line.give_back(&a);
        assert_eq!(granted(&mut line), [8]);
        line.give_back(&b);
        assert_eq!(granted(&mut line), [6]);
    }

    #[test]
    fn many_who_want_little_do_not_keep_one_who_wants_much_from_his_share() {
        let mut line = Line::new(1, Share::Alone(1));
        let flood: Name = "flood".into();
        let names: Vec<Name> = (0..10).map(|name| name.to_string().into()).collect();
        assert!(line.take(&flood, 9));
        let mut holder = flood.clone();
        for _ in 0..9 {
            line.wait(&flood, usize::MAX, 99, 0).unwrap();
        }
        let mut served = 0;
        for round in 0..100 {
            // Each of them wants one again as soon as he has had one.
            for name in &names {
                if line.waiting_of(name) == 0 && *name != holder {
                    line.wait(name, 9, 9, round).unwrap();
                }
            }
            line.give_back(&holder);
            (holder, _) = line.next().unwrap();
            served += usize::from(holder == flood);
        }
        assert!((8..=10).contains(&served), "{served}");
    }

    #[test]
    fn a_lane_is_bounded_and_can_be_left() {
        let [a, b, _] = names();
        let mut line = Line::new(1, Share::All);
        assert!(line.take(&b, 9));
        let first = line.wait(&a, 9, 2, 1).unwrap();
        let second = line.wait(&a, 9, 2, 2).unwrap();
        assert_eq!(line.wait(&a, 9, 2, 3), Err(3));
        line.leave(&a, first);
        line.leave(&a, first);
        assert_eq!(line.waiting_of(&a), 1);
        line.leave(&a, second);
        assert_eq!((line.waiting(), line.lanes_waiting()), (0, 0));
        line.give_back(&b);
        assert_eq!(line.held(), 0);
    }

    /// No place is lost, none is given twice, and nobody waits who could have one.
    #[test]
    fn whatever_happens_the_places_are_what_they_were() {
        let names = names();
        for seed in 0..200_usize {
            let (at_most, share) = (seed % 7 + 1, seed % 4 + 1);
            let share = match seed % 5 {
                0 => Share::Alone(share.min(at_most)),
                1 => Share::All,
                2 => Share::Reserve,
                _ => Share::OfFree(share),
            };
            let mut line = Line::new(at_most, share);
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
                        if line.take(&name, most) {
                            held.push(name);
                        } else if let Ok(number) = line.wait(&name, most, 5, step) {
                            waiting.push((name, number, step));
                        }
                    }
                    2 if !held.is_empty() => {
                        let name = held.swap_remove((random >> 8) % held.len());
                        line.give_back(&name);
                    }
                    _ if !waiting.is_empty() => {
                        let (name, number, _) = waiting.swap_remove((random >> 8) % waiting.len());
                        line.leave(&name, number);
                    }
                    _ => {}
                }
                while let Some((name, step)) = line.next() {
                    let position = waiting.iter().position(|(_, _, waits)| *waits == step);
                    waiting.remove(position.unwrap());
                    held.push(name);
                }
                assert_eq!((line.held(), line.waiting()), (held.len(), waiting.len()));
                assert!(held.len() <= at_most);
                let of_a = held.iter().filter(|name| &***name == "a").count();
                assert!(of_a <= 2);
                assert!(line.next_turn().is_none());
            }
        }
    }
}
