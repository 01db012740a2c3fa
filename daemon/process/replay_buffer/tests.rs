//! Readers of a replay buffer, by tables and in random order.

use tokio::time::{Duration, timeout};

use super::*;

type TextBuffer = ReplayBuffer<&'static str>;

async fn all(text: &TextBuffer, cursor: &mut ReaderCursor) -> Vec<OutputEvent<&'static str>> {
    let mut events = Vec::new();
    while let Some(event) = text.next_event(cursor).await {
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
async fn reader_gets_everything_after_its_position() {
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
        let mut cursor = text
            .add_reader(OutputPosition { after_sequence, stdout_offset, stderr_offset })
            .unwrap();
        let events = all(&text, &mut cursor).await;
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
async fn dropped_output_is_one_gap() {
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
    // A reader that delivered the bytes delivered missed nothing.
    let position = OutputPosition { stdout_offset: 3, ..OutputPosition::default() };
    let mut late = text.add_reader(position).unwrap();
    let events = all(&text, &mut late).await;
    assert_eq!(events[1], chunk(2, out, 3, "d"));
    // A chunk that exceeds the limit by itself is dropped.
    let text = TextBuffer::new(4, Some(READER_STALL_TIMEOUT));
    let mut cursor = text.add_reader(OutputPosition::default()).unwrap();
    text.push(out, b"abcdef");
    text.mark_ended("end");
    let events = all(&text, &mut cursor).await;
    assert_eq!(events, [OutputEvent::Started, gap(2, 6), OutputEvent::End("end")]);
}

#[tokio::test]
async fn command_waits_for_the_fastest_reader() {
    let out = StreamName::Stdout;
    let text = TextBuffer::new(8, Some(READER_STALL_TIMEOUT));
    assert!(text.has_capacity(), "there are no readers yet");
    let mut slow = text.add_reader(OutputPosition::default()).unwrap();
    let mut fast = text.add_reader(OutputPosition::default()).unwrap();
    text.push(out, b"1234");
    // The grace for slow readers is used up.
    text.state().grace_started = Some(Instant::now() - SLOW_READER_GRACE);
    assert!(!text.has_capacity());
    assert_eq!(text.next_event(&mut fast).await, Some(OutputEvent::Started));
    assert!(text.next_event(&mut fast).await.is_some());
    assert!(text.has_capacity(), "one reader has everything");
    text.push(out, b"56789");
    assert!(!text.has_capacity());
    // The command waits until a reader reads something, ...
    assert!(timeout(Duration::from_millis(5), text.wait_for_capacity()).await.is_err());
    assert!(text.next_event(&mut fast).await.is_some());
    text.wait_for_capacity().await;
    // ... until a reader leaves, ...
    text.push(out, b"abcd");
    assert_eq!(text.remove_reader(&fast), 1);
    assert!(!text.has_capacity());
    let (remaining, ()) =
        tokio::join!(async { text.remove_reader(&slow) }, text.wait_for_capacity());
    assert_eq!(remaining, 0);
    // ... or until the command delivered ended.
    slow = text.add_reader(OutputPosition::default()).unwrap();
    text.push(out, b"efgh");
    assert!(!text.has_capacity());
    text.mark_ended("end");
    assert!(text.has_capacity());
    assert!(all(&text, &mut slow).await.len() > 2);
}

#[tokio::test]
async fn command_waits_briefly_for_a_reader_that_falls_behind() {
    let out = StreamName::Stdout;
    let text = TextBuffer::new(16, Some(READER_STALL_TIMEOUT));
    let mut slow = text.add_reader(OutputPosition::default()).unwrap();
    let mut fast = text.add_reader(OutputPosition::default()).unwrap();
    let backpressure = |now| text.state().backpressure(8, Some(READER_STALL_TIMEOUT), now);
    let reads = async |cursor: &mut ReaderCursor| text.next_event(cursor).await.is_some();
    text.mark_started();
    assert!(reads(&mut slow).await && reads(&mut fast).await);
    for data in [b"1234", b"5678"] {
        text.push(out, data);
        assert!(reads(&mut fast).await);
    }
    let started = Instant::now();
    // Not for long if the reader reads nothing; ...
    let Backpressure::HeldUntil(Some(until)) = backpressure(started) else {
        panic!("the command waits");
    };
    assert!(until <= started + SLOW_READER_PROGRESS_TIMEOUT);
    assert_eq!(backpressure(until), Backpressure::Released);
    // ... if it reads, until it is close enough, ...
    assert!(reads(&mut slow).await);
    assert_eq!(backpressure(Instant::now()), Backpressure::Released);
    // ... again and again, but not longer than the grace in total, ...
    let now = started + SLOW_READER_GRACE;
    text.push(out, b"9abc");
    assert!(reads(&mut fast).await);
    text.state().readers.get_mut(&slow.reader_id).unwrap().last_progress = now;
    assert_eq!(backpressure(now - Duration::from_millis(1)), Backpressure::HeldUntil(Some(now)));
    assert_eq!(backpressure(now), Backpressure::Released);
    assert_eq!(backpressure(now + SLOW_READER_GRACE), Backpressure::Released);
    // ... until the interval delivered passed.
    let later = started + SLOW_READER_GRACE_INTERVAL;
    text.state().readers.get_mut(&slow.reader_id).unwrap().last_progress = later;
    assert!(matches!(backpressure(later), Backpressure::HeldUntil(_)));
    // Never for a reader that came late or delivered missed something.
    text.state().grace_started = None;
    text.remove_reader(&slow);
    let _late = text.add_reader(OutputPosition::default()).unwrap();
    assert_eq!(backpressure(Instant::now()), Backpressure::Released);
    text.drop_retained();
    assert_eq!(backpressure(Instant::now()), Backpressure::Released);
}

#[tokio::test]
async fn stalled_reader_holds_the_command_for_a_limited_time() {
    let text = TextBuffer::new(8, Some(READER_STALL_TIMEOUT));
    let _idle = text.add_reader(OutputPosition::default()).unwrap();
    text.push(StreamName::Stdout, b"1234");
    let now = Instant::now();
    let mut state = text.state();
    let Backpressure::HeldUntil(Some(until)) =
        state.backpressure(4, Some(READER_STALL_TIMEOUT), now)
    else {
        panic!("the command waits");
    };
    assert!(until > now && until <= now + READER_STALL_TIMEOUT);
    assert_eq!(state.backpressure(4, Some(READER_STALL_TIMEOUT), until), Backpressure::Released);
    assert_eq!(
        state.backpressure(4, None, until),
        Backpressure::HeldUntil(None),
        "the command ends with its last reader"
    );
}

#[tokio::test]
async fn backpressure_limits_the_number_of_chunks() {
    let text = TextBuffer::new(1 << 20, None);
    let mut cursor = text.add_reader(OutputPosition::default()).unwrap();
    let mut written = 0_u64;
    while text.has_capacity() {
        text.push(StreamName::Stdout, b"x");
        written += 1;
    }
    assert!(written < MAX_REPLAY_CHUNKS as u64);
    text.mark_ended("end");
    let events = all(&text, &mut cursor).await;
    assert_eq!(events.len() as u64, written + 2, "nothing was lost");
}

#[tokio::test]
async fn dropped_retained_output_is_a_gap() {
    let text = TextBuffer::new(100, None);
    text.push(StreamName::Stdout, b"abc");
    text.drop_retained();
    text.mark_ended("end");
    text.replace_end_value(|_| "other");
    let mut cursor = text.add_reader(OutputPosition::default()).unwrap();
    let events = all(&text, &mut cursor).await;
    let gap = OutputEvent::Gap(OutputGap { next_sequence: 2, stdout_offset: 3, stderr_offset: 0 });
    assert_eq!(events, [OutputEvent::Started, gap, OutputEvent::End("other")]);
}

/// Writes and reads in a random order. Readers must get the exact bytes at their offsets, with
/// explicit gaps in between.
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
        let mut cursors = vec![(text.add_reader(OutputPosition::default()).unwrap(), [0_usize; 2])];
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
                2 if cursors.len() < 5 => {
                    let [out, err] = [0, 1].map(|of: usize| random(written[of].len() as u64 + 1));
                    let position = OutputPosition {
                        after_sequence: 0,
                        stdout_offset: out,
                        stderr_offset: err,
                    };
                    let delivered = [out, err].map(|offset| usize::try_from(offset).unwrap());
                    cursors.push((text.add_reader(position).unwrap(), delivered));
                }
                _ => {
                    let which = usize::try_from(random(cursors.len() as u64)).unwrap();
                    let (cursor, delivered) = &mut cursors[which];
                    let event = timeout(Duration::ZERO, text.next_event(cursor)).await;
                    match event {
                        Ok(Some(OutputEvent::Chunk(chunk))) => {
                            let of = usize::from(chunk.stream == StreamName::Stderr);
                            let from = usize::try_from(chunk.offset).unwrap();
                            assert_eq!(from, delivered[of], "round {round}, step {step}");
                            delivered[of] += chunk.data.len();
                            assert_eq!(chunk.data, written[of][from..delivered[of]]);
                        }
                        Ok(Some(OutputEvent::Gap(gap))) => {
                            let now = [gap.stdout_offset, gap.stderr_offset]
                                .map(|offset| usize::try_from(offset).unwrap());
                            assert!(
                                now[0] >= delivered[0]
                                    && now[1] >= delivered[1]
                                    && now != *delivered
                            );
                            *delivered = now;
                        }
                        Ok(Some(OutputEvent::Started)) | Err(_) => {}
                        Ok(other) => panic!("{other:?}"),
                    }
                }
            }
        }
    }
}
