//! Readers of a transcript, by tables and by chance.

use tokio::time::{Duration, timeout};

use super::*;

type TextBuffer = ReplayBuffer<&'static str>;

async fn all(text: &TextBuffer, place: &mut ReaderCursor) -> Vec<OutputEvent<&'static str>> {
    let mut events = Vec::new();
    while let Some(event) = text.next_event(place).await {
        events.push(event);
    }
    events
}

fn chunk(sequence: u64, stream: StreamName, offset: u64, data: &str) -> OutputEvent<&'static str> {
    OutputEvent::Chunk(OutputChunk {
        sequence,
        stream,
        offset,
        data: Bytes::copy_from_slice(data.as_bytes()),
    })
}

#[tokio::test]
async fn a_reader_gets_all_behind_its_position() {
    let (out, err) = (StreamName::Stdout, StreamName::Stderr);
    let text = TextBuffer::new(100, Some(READER_STALL_TIMEOUT));
    text.push(out, b"abc");
    text.push(err, b"de");
    text.push(out, b"fgh");
    text.mark_ended("end");
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
        let mut place = text
            .add_reader(OutputPosition { after_sequence, stdout_offset, stderr_offset })
            .unwrap();
        let events = all(&text, &mut place).await;
        let (first, rest) = events.split_first().unwrap();
        let (last, rest) = rest.split_last().unwrap();
        assert_eq!((first, last), (&OutputEvent::Started, &OutputEvent::End("end")));
        assert_eq!(rest, expected, "{position:?}");
    }
    for (after_sequence, stdout_offset, stderr_offset) in [(4, 0, 0), (0, 7, 0), (0, 0, 3)] {
        let position = OutputPosition { after_sequence, stdout_offset, stderr_offset };
        let Err(PositionBeyondEnd(written)) = text.add_reader(position) else {
            panic!("{position:?}");
        };
        assert_eq!((written.after_sequence, written.stdout_offset), (3, 6));
    }
}

#[tokio::test]
async fn what_is_dropped_is_told_once() {
    let out = StreamName::Stdout;
    let text = TextBuffer::new(4, Some(READER_STALL_TIMEOUT));
    let mut early = text.add_reader(OutputPosition::default()).unwrap();
    for data in ["ab", "cd", "ef"] {
        text.push(out, data.as_bytes());
    }
    text.mark_ended("end");
    let gap = |next_sequence, stdout_offset| {
        OutputEvent::Gap(OutputGap { next_sequence, stdout_offset, stderr_offset: 0 })
    };
    let rest = vec![
        OutputEvent::Started,
        gap(2, 2),
        chunk(2, out, 2, "cd"),
        chunk(3, out, 4, "ef"),
        OutputEvent::End("end"),
    ];
    assert_eq!(all(&text, &mut early).await, rest);
    // Who has the bytes has missed nothing.
    let position = OutputPosition { stdout_offset: 3, ..OutputPosition::default() };
    let mut late = text.add_reader(position).unwrap();
    let events = all(&text, &mut late).await;
    assert_eq!(events[1], chunk(2, out, 3, "d"));
    // A chunk larger than everything that is kept is not kept itself.
    let text = TextBuffer::new(4, Some(READER_STALL_TIMEOUT));
    let mut place = text.add_reader(OutputPosition::default()).unwrap();
    text.push(out, b"abcdef");
    text.mark_ended("end");
    let events = all(&text, &mut place).await;
    assert_eq!(events, [OutputEvent::Started, gap(2, 6), OutputEvent::End("end")]);
}

#[tokio::test]
async fn the_fastest_reader_is_waited_for() {
    let out = StreamName::Stdout;
    let text = TextBuffer::new(8, Some(READER_STALL_TIMEOUT));
    assert!(text.has_capacity(), "nobody is waited for");
    let mut slow = text.add_reader(OutputPosition::default()).unwrap();
    let mut fast = text.add_reader(OutputPosition::default()).unwrap();
    text.push(out, b"1234");
    // That is used up, and nobody waits for it because it was faster once.
    text.state().grace_started = Some(Instant::now() - SLOW_READER_GRACE);
    assert!(!text.has_capacity());
    assert_eq!(text.next_event(&mut fast).await, Some(OutputEvent::Started));
    assert!(text.next_event(&mut fast).await.is_some());
    assert!(text.has_capacity(), "one is as far as it gets");
    text.push(out, b"56789");
    assert!(!text.has_capacity());
    // It waits until one of them moves on, ...
    assert!(timeout(Duration::from_millis(5), text.wait_for_capacity()).await.is_err());
    assert!(text.next_event(&mut fast).await.is_some());
    text.wait_for_capacity().await;
    // ... until it leaves, ...
    text.push(out, b"abcd");
    assert_eq!(text.remove_reader(&fast), 1);
    assert!(!text.has_capacity());
    let (left, ()) = tokio::join!(async { text.remove_reader(&slow) }, text.wait_for_capacity());
    assert_eq!(left, 0);
    // ... or until all is over.
    slow = text.add_reader(OutputPosition::default()).unwrap();
    text.push(out, b"efgh");
    assert!(!text.has_capacity());
    text.mark_ended("end");
    assert!(text.has_capacity());
    assert!(all(&text, &mut slow).await.len() > 2);
}

#[tokio::test]
async fn a_reader_that_falls_behind_the_others_is_waited_for_a_moment() {
    let out = StreamName::Stdout;
    let text = TextBuffer::new(16, Some(READER_STALL_TIMEOUT));
    let mut slow = text.add_reader(OutputPosition::default()).unwrap();
    let mut fast = text.add_reader(OutputPosition::default()).unwrap();
    let room = |now| text.state().backpressure(8, Some(READER_STALL_TIMEOUT), now);
    let takes = async |place: &mut ReaderCursor| text.next_event(place).await.is_some();
    text.mark_started();
    assert!(takes(&mut slow).await && takes(&mut fast).await);
    for data in [b"1234", b"5678"] {
        text.push(out, data);
        assert!(takes(&mut fast).await);
    }
    let begun = Instant::now();
    // One that takes nothing, soon not any more; ...
    let Backpressure::HeldUntil(Some(until)) = room(begun) else {
        panic!("it is waited for");
    };
    assert!(until <= begun + SLOW_READER_PROGRESS_TIMEOUT);
    assert_eq!(room(until), Backpressure::Released);
    // ... one that goes on, until it is close enough, ...
    assert!(takes(&mut slow).await);
    assert_eq!(room(Instant::now()), Backpressure::Released);
    // ... again and again, but not longer than it is allowed in all, ...
    let now = begun + SLOW_READER_GRACE;
    text.push(out, b"9abc");
    assert!(takes(&mut fast).await);
    text.state().readers.get_mut(&slow.reader_id).unwrap().last_progress = now;
    assert_eq!(room(now - Duration::from_millis(1)), Backpressure::HeldUntil(Some(now)));
    assert_eq!(room(now), Backpressure::Released);
    assert_eq!(room(now + SLOW_READER_GRACE), Backpressure::Released);
    // ... until some time has passed.
    let later = begun + SLOW_READER_GRACE_INTERVAL;
    text.state().readers.get_mut(&slow.reader_id).unwrap().last_progress = later;
    assert!(matches!(room(later), Backpressure::HeldUntil(_)));
    // One that came late, or has missed something, is not waited for at all.
    text.state().grace_started = None;
    text.remove_reader(&slow);
    let _late = text.add_reader(OutputPosition::default()).unwrap();
    assert_eq!(room(Instant::now()), Backpressure::Released);
    text.drop_retained();
    assert_eq!(room(Instant::now()), Backpressure::Released);
}

#[tokio::test]
async fn a_reader_that_does_nothing_is_given_up_in_time() {
    let text = TextBuffer::new(8, Some(READER_STALL_TIMEOUT));
    let _idle = text.add_reader(OutputPosition::default()).unwrap();
    text.push(StreamName::Stdout, b"1234");
    let now = Instant::now();
    let mut state = text.state();
    let Backpressure::HeldUntil(Some(until)) =
        state.backpressure(4, Some(READER_STALL_TIMEOUT), now)
    else {
        panic!("it is waited for");
    };
    assert!(until > now && until <= now + READER_STALL_TIMEOUT);
    assert_eq!(state.backpressure(4, Some(READER_STALL_TIMEOUT), until), Backpressure::Released);
    assert_eq!(
        state.backpressure(4, None, until),
        Backpressure::HeldUntil(None),
        "its last reader owns it"
    );
}

#[tokio::test]
async fn many_small_chunks_wait_for_their_reader_as_few_large_ones_do() {
    let text = TextBuffer::new(1 << 20, None);
    let mut place = text.add_reader(OutputPosition::default()).unwrap();
    let mut written = 0_u64;
    while text.has_capacity() {
        text.push(StreamName::Stdout, b"x");
        written += 1;
    }
    assert!(written < MAX_RETAINED_CHUNKS as u64);
    text.mark_ended("end");
    let events = all(&text, &mut place).await;
    assert_eq!(events.len() as u64, written + 2, "nothing was lost");
}

#[tokio::test]
async fn what_is_forgotten_is_a_gap() {
    let text = TextBuffer::new(100, None);
    text.push(StreamName::Stdout, b"abc");
    text.drop_retained();
    text.mark_ended("end");
    text.replace_end_value(|_| "other");
    let mut place = text.add_reader(OutputPosition::default()).unwrap();
    let events = all(&text, &mut place).await;
    let gap = OutputEvent::Gap(OutputGap { next_sequence: 2, stdout_offset: 3, stderr_offset: 0 });
    assert_eq!(events, [OutputEvent::Started, gap, OutputEvent::End("other")]);
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
        let text = TextBuffer::new(64, Some(READER_STALL_TIMEOUT));
        let mut written = [Vec::new(), Vec::new()];
        let mut places = vec![(text.add_reader(OutputPosition::default()).unwrap(), [0_usize; 2])];
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
                    let position = OutputPosition {
                        after_sequence: 0,
                        stdout_offset: out,
                        stderr_offset: err,
                    };
                    let has = [out, err].map(|offset| usize::try_from(offset).unwrap());
                    places.push((text.add_reader(position).unwrap(), has));
                }
                _ => {
                    let which = usize::try_from(random(places.len() as u64)).unwrap();
                    let (place, has) = &mut places[which];
                    let event = timeout(Duration::ZERO, text.next_event(place)).await;
                    match event {
                        Ok(Some(OutputEvent::Chunk(chunk))) => {
                            let of = usize::from(chunk.stream == StreamName::Stderr);
                            let from = usize::try_from(chunk.offset).unwrap();
                            assert_eq!(from, has[of], "round {round}, step {step}");
                            has[of] += chunk.data.len();
                            assert_eq!(chunk.data, written[of][from..has[of]]);
                        }
                        Ok(Some(OutputEvent::Gap(gap))) => {
                            let now = [gap.stdout_offset, gap.stderr_offset]
                                .map(|offset| usize::try_from(offset).unwrap());
                            assert!(now[0] >= has[0] && now[1] >= has[1] && now != *has);
                            *has = now;
                        }
                        Ok(Some(OutputEvent::Started)) | Err(_) => {}
                        Ok(other) => panic!("{other:?}"),
                    }
                }
            }
        }
    }
}
