//! Readers of a transcript, by tables and by chance.

use tokio::time::{Duration, timeout};

use super::*;

type Text = Transcript<&'static str>;

async fn all(text: &Text, place: &mut Place) -> Vec<Event<&'static str>> {
    let mut events = Vec::new();
    while let Some(event) = text.next(place).await {
        events.push(event);
    }
    events
}

fn chunk(sequence: u64, stream: StreamName, offset: u64, data: &str) -> Event<&'static str> {
    Event::Chunk(Chunk { sequence, stream, offset, data: Bytes::copy_from_slice(data.as_bytes()) })
}

#[tokio::test]
async fn a_reader_gets_all_behind_its_position() {
    let (out, err) = (StreamName::Stdout, StreamName::Stderr);
    let text = Text::new(100, Some(PATIENCE));
    text.push(out, b"abc");
    text.push(err, b"de");
    text.push(out, b"fgh");
    text.end("end");
    for (position, expected) in [
        ((0, 0, 0), vec![chunk(1, out, 0, "abc"), chunk(2, err, 0, "de"), chunk(3, out, 3, "fgh")]),
        ((1, 0, 0), vec![chunk(2, err, 0, "de"), chunk(3, out, 3, "fgh")]),
        ((3, 0, 0), vec![]),
        ((0, 2, 0), vec![chunk(1, out, 2, "c"), chunk(2, err, 0, "de"), chunk(3, out, 3, "fgh")]),
        ((0, 4, 2), vec![chunk(3, out, 4, "gh")]),
        ((2, 5, 2), vec![chunk(3, out, 5, "h")]),
        ((0, 6, 2), vec![]),
    ] {
        let (after_sequence, stdout_offset, stderr_offset) = position;
        let mut place =
            text.enter(Position { after_sequence, stdout_offset, stderr_offset }).unwrap();
        let events = all(&text, &mut place).await;
        let (first, rest) = events.split_first().unwrap();
        let (last, rest) = rest.split_last().unwrap();
        assert_eq!((first, last), (&Event::Started, &Event::End("end")));
        assert_eq!(rest, expected, "{position:?}");
    }
    for (after_sequence, stdout_offset, stderr_offset) in [(4, 0, 0), (0, 7, 0), (0, 0, 3)] {
        let position = Position { after_sequence, stdout_offset, stderr_offset };
        let Err(Beyond(written)) = text.enter(position) else {
            panic!("{position:?}");
        };
        assert_eq!((written.after_sequence, written.stdout_offset), (3, 6));
    }
}

#[tokio::test]
async fn what_is_dropped_is_told_once() {
    let out = StreamName::Stdout;
    let text = Text::new(4, Some(PATIENCE));
    let mut early = text.enter(Position::default()).unwrap();
    for data in ["ab", "cd", "ef"] {
        text.push(out, data.as_bytes());
    }
    text.end("end");
    let gap = |next_sequence, stdout_offset| {
        Event::Gap(Gap { next_sequence, stdout_offset, stderr_offset: 0 })
    };
    let rest = vec![
        Event::Started,
        gap(2, 2),
        chunk(2, out, 2, "cd"),
        chunk(3, out, 4, "ef"),
        Event::End("end"),
    ];
    assert_eq!(all(&text, &mut early).await, rest);
    // Who has the bytes has missed nothing.
    let position = Position { stdout_offset: 3, ..Position::default() };
    let mut late = text.enter(position).unwrap();
    let events = all(&text, &mut late).await;
    assert_eq!(events[1], chunk(2, out, 3, "d"));
    // A chunk larger than everything that is kept is not kept itself.
    let text = Text::new(4, Some(PATIENCE));
    let mut place = text.enter(Position::default()).unwrap();
    text.push(out, b"abcdef");
    text.end("end");
    let events = all(&text, &mut place).await;
    assert_eq!(events, [Event::Started, gap(2, 6), Event::End("end")]);
}

#[tokio::test]
async fn the_fastest_reader_is_waited_for() {
    let out = StreamName::Stdout;
    let text = Text::new(8, Some(PATIENCE));
    assert!(text.has_room(), "nobody is waited for");
    let mut slow = text.enter(Position::default()).unwrap();
    let mut fast = text.enter(Position::default()).unwrap();
    text.push(out, b"1234");
    // That is used up, and nobody waits for it because it was faster once.
    text.state().allowed = Some(Instant::now() - ALLOWANCE);
    assert!(!text.has_room());
    assert_eq!(text.next(&mut fast).await, Some(Event::Started));
    assert!(text.next(&mut fast).await.is_some());
    assert!(text.has_room(), "one is as far as it gets");
    text.push(out, b"56789");
    assert!(!text.has_room());
    // It waits until one of them moves on, ...
    assert!(timeout(Duration::from_millis(5), text.room()).await.is_err());
    assert!(text.next(&mut fast).await.is_some());
    text.room().await;
    // ... until it leaves, ...
    text.push(out, b"abcd");
    assert_eq!(text.leave(&fast), 1);
    assert!(!text.has_room());
    let (left, ()) = tokio::join!(async { text.leave(&slow) }, text.room());
    assert_eq!(left, 0);
    // ... or until all is over.
    slow = text.enter(Position::default()).unwrap();
    text.push(out, b"efgh");
    assert!(!text.has_room());
    text.end("end");
    assert!(text.has_room());
    assert!(all(&text, &mut slow).await.len() > 2);
}

#[tokio::test]
async fn a_reader_that_falls_behind_the_others_is_waited_for_a_moment() {
    let out = StreamName::Stdout;
    let text = Text::new(16, Some(PATIENCE));
    let mut slow = text.enter(Position::default()).unwrap();
    let mut fast = text.enter(Position::default()).unwrap();
    let room = |now| text.state().room(8, Some(PATIENCE), now);
    let takes = async |place: &mut Place| text.next(place).await.is_some();
    text.start();
    assert!(takes(&mut slow).await && takes(&mut fast).await);
    for data in [b"1234", b"5678"] {
        text.push(out, data);
        assert!(takes(&mut fast).await);
    }
    let begun = Instant::now();
    // One that takes nothing, soon not any more; ...
    let Room::Until(Some(until)) = room(begun) else {
        panic!("it is waited for");
    };
    assert!(until <= begun + MOVES_WITHIN);
    assert_eq!(room(until), Room::Free);
    // ... one that goes on, until it is close enough, ...
    assert!(takes(&mut slow).await);
    assert_eq!(room(Instant::now()), Room::Free);
    // ... again and again, but not longer than it is allowed in all, ...
    let now = begun + ALLOWANCE;
    text.push(out, b"9abc");
    assert!(takes(&mut fast).await);
    text.state().readers.get_mut(&slow.id).unwrap().moved = now;
    assert_eq!(room(now - Duration::from_millis(1)), Room::Until(Some(now)));
    assert_eq!(room(now), Room::Free);
    assert_eq!(room(now + ALLOWANCE), Room::Free);
    // ... until some time has passed.
    let later = begun + ALLOWED_EVERY;
    text.state().readers.get_mut(&slow.id).unwrap().moved = later;
    assert!(matches!(room(later), Room::Until(_)));
    // One that came late, or has missed something, is not waited for at all.
    text.state().allowed = None;
    text.leave(&slow);
    let _late = text.enter(Position::default()).unwrap();
    assert_eq!(room(Instant::now()), Room::Free);
    text.forget();
    assert_eq!(room(Instant::now()), Room::Free);
}

#[tokio::test]
async fn a_reader_that_does_nothing_is_given_up_in_time() {
    let text = Text::new(8, Some(PATIENCE));
    let _idle = text.enter(Position::default()).unwrap();
    text.push(StreamName::Stdout, b"1234");
    let now = Instant::now();
    let mut state = text.state();
    let Room::Until(Some(until)) = state.room(4, Some(PATIENCE), now) else {
        panic!("it is waited for");
    };
    assert!(until > now && until <= now + PATIENCE);
    assert_eq!(state.room(4, Some(PATIENCE), until), Room::Free);
    assert_eq!(state.room(4, None, until), Room::Until(None), "its last reader owns it");
}

#[tokio::test]
async fn many_small_chunks_wait_for_their_reader_as_few_large_ones_do() {
    let text = Text::new(1 << 20, None);
    let mut place = text.enter(Position::default()).unwrap();
    let mut written = 0_u64;
    while text.has_room() {
        text.push(StreamName::Stdout, b"x");
        written += 1;
    }
    assert!(written < CHUNKS_AT_MOST as u64);
    text.end("end");
    let events = all(&text, &mut place).await;
    assert_eq!(events.len() as u64, written + 2, "nothing was lost");
}

#[tokio::test]
async fn what_is_forgotten_is_a_gap() {
    let text = Text::new(100, None);
    text.push(StreamName::Stdout, b"abc");
    text.forget();
    text.end("end");
    text.replace_end(|_| "other");
    let mut place = text.enter(Position::default()).unwrap();
    let events = all(&text, &mut place).await;
    let gap = Event::Gap(Gap { next_sequence: 2, stdout_offset: 3, stderr_offset: 0 });
    assert_eq!(events, [Event::Started, gap, Event::End("other")]);
}

/// Writes and reads in a random order; whatever comes must be the exact bytes at their offsets, with
/// explicit gaps between.
#[tokio::test]
async fn readers_at_any_speed_see_exact_bytes_or_gaps() {
    let mut seed = 7_u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for round in 0..200 {
        let text = Text::new(64, Some(PATIENCE));
        let mut written = [Vec::new(), Vec::new()];
        let mut places = vec![(text.enter(Position::default()).unwrap(), [0_usize; 2])];
        for step in 0..200 {
            let is_err = random(2) == 1;
            let stream = if is_err { StreamName::Stderr } else { StreamName::Stdout };
            match random(4) {
                0 | 1 => {
                    let data: Vec<u8> =
                        (0..=random(20)).map(|_| random(256).to_le_bytes()[0]).collect();
                    text.push(stream, &data);
                    written[usize::from(is_err)].extend(data);
                }
                2 if places.len() < 5 => {
                    let [out, err] = [0, 1].map(|of: usize| random(written[of].len() as u64 + 1));
                    let position =
                        Position { after_sequence: 0, stdout_offset: out, stderr_offset: err };
                    let has = [out, err].map(|offset| usize::try_from(offset).unwrap());
                    places.push((text.enter(position).unwrap(), has));
                }
                _ => {
                    let which = usize::try_from(random(places.len() as u64)).unwrap();
                    let (place, has) = &mut places[which];
                    let event = timeout(Duration::ZERO, text.next(place)).await;
                    match event {
                        Ok(Some(Event::Chunk(chunk))) => {
                            let of = usize::from(chunk.stream == StreamName::Stderr);
                            let from = usize::try_from(chunk.offset).unwrap();
                            assert_eq!(from, has[of], "round {round}, step {step}");
                            has[of] += chunk.data.len();
                            assert_eq!(chunk.data, written[of][from..has[of]]);
                        }
                        Ok(Some(Event::Gap(gap))) => {
                            let now = [gap.stdout_offset, gap.stderr_offset]
                                .map(|offset| usize::try_from(offset).unwrap());
                            assert!(now[0] >= has[0] && now[1] >= has[1] && now != *has);
                            *has = now;
                        }
                        Ok(Some(Event::Started)) | Err(_) => {}
                        Ok(other) => panic!("{other:?}"),
                    }
                }
            }
        }
    }
}
