//! Finds the events in a payload. What they hold, `abi::event` says.

use abi::event::{BadEvent, End, EventHeader, Kind, Position, EVENT_HEADER_SIZE};
use abi::ids::LiveAddr;
use abi::trace::RegisterState;

/// An event that was read from a trace.
pub type Event = abi::event::Event<Box<[u8]>, Box<RegisterState>>;

/// An event and where it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Where.
    pub position: Position,
    /// What; `None` if this version does not know its kind, or if its check does not hold. It still
    /// says that the thread was there.
    pub event: Option<Event>,
}

impl Placed {
    /// The instruction in front of which the process was stopped, if this is that: it has never run before, and
    /// ends its unit.
    #[must_use]
    pub(crate) fn refused_at(&self) -> Option<LiveAddr> {
        match &self.event {
            Some(Event::ProcessEnd { reason: End::Refused, address, .. }) => {
                Some(LiveAddr(*address))
            }
            _ => None,
        }
    }

    /// The thread, or with it the process, called for its end.
    #[must_use]
    pub(crate) fn is_exit(&self) -> bool {
        matches!(
            &self.event,
            Some(
                Event::ThreadEnd { reason: End::Exit, .. }
                    | Event::ProcessEnd { reason: End::Exit, .. }
            )
        )
    }
}

/// Reads the events of a payload up to its end mark. The flag says whether it ended properly.
#[must_use]
pub fn parse(payload: &[u8]) -> (Vec<Placed>, bool) {
    let (events, _, whole) = parse_some(payload);
    (events, whole)
}

/// The same, without what a busy program makes most of: its calls, what they wrote, what others stored. The last event is
/// there, whatever it is: it tells behind what nothing came.
#[must_use]
pub(crate) fn parse_outline(payload: &[u8]) -> (Vec<Placed>, bool) {
    let (events, _, whole) = parse_those(payload, |kind| {
        !matches!(
            kind,
            Kind::Syscall
                | Kind::Written
                | Kind::Answer
                | Kind::Passed
                | Kind::Seen
                | Kind::Checked
                | Kind::Stamp
        )
    });
    (events, whole)
}

/// As [`parse`], and how many bytes they take.
#[must_use]
pub(crate) fn parse_some(payload: &[u8]) -> (Vec<Placed>, usize, bool) {
    parse_those(payload, |_| true)
}

/// The events of the wanted kinds, and the last one.
fn parse_those(payload: &[u8], wanted: impl Fn(Kind) -> bool) -> (Vec<Placed>, usize, bool) {
    let mut events = Vec::new();
    let mut rest = payload;
    // The last one, if it is not wanted.
    let mut last = None;
    let whole = loop {
        if rest.is_empty() {
            break true;
        }
        let Some(header) = EventHeader::from_bytes(rest) else {
            // Less than a header is left: fine if that is padding.
            break rest.iter().all(|&b| b == 0);
        };
        if header.kind == 0 {
            break true;
        }
        let Some((own, behind)) = split(&header, &rest[EVENT_HEADER_SIZE..]) else { break false };
        let is_wanted = Kind::from_u16(header.kind).is_none_or(&wanted);
        if is_wanted {
            let Some(placed) = placed(&header, own) else { break false };
            events.push(placed);
        }
        last = (!is_wanted).then_some((header, own));
        rest = behind;
    };
    events.extend(last.and_then(|(header, own)| placed(&header, own)));
    (events, payload.len() - rest.len(), whole)
}

/// The payload of an event at the start of `rest`, and what is behind it.
fn split<'a>(header: &EventHeader, rest: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let len = usize::try_from(header.len).ok().filter(|len| len.is_multiple_of(8))?;
    rest.split_at_checked(len)
}

/// The event with this payload; `None`: that is too short.
fn placed(header: &EventHeader, payload: &[u8]) -> Option<Placed> {
    let event = match Kind::from_u16(header.kind).map(|kind| Event::decode(kind, payload)) {
        Some(Ok(event)) => Some(event),
        Some(Err(BadEvent::Short)) => return None,
        Some(Err(BadEvent::Check)) | None => None,
    };
    Some(Placed { position: header.position, event })
}
