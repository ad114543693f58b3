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

/// The same, and how many bytes they take.
#[must_use]
pub(crate) fn parse_some(payload: &[u8]) -> (Vec<Placed>, usize, bool) {
    let mut events = Vec::new();
    let len = |rest: &[u8]| payload.len() - rest.len();
    let mut rest = payload;
    while !rest.is_empty() {
        let Some(header) = EventHeader::from_bytes(rest) else {
            // Less than a header is left: fine if that is padding.
            return (events, len(rest), rest.iter().all(|&b| b == 0));
        };
        if header.kind == 0 {
            break;
        }
        let Some((event, behind)) = split(&header, &rest[EVENT_HEADER_SIZE..]) else {
            return (events, len(rest), false);
        };
        events.push(Placed { position: header.position, event });
        rest = behind;
    }
    (events, len(rest), true)
}

/// The event whose payload is at the start of `rest`, and what is behind it.
fn split<'a>(header: &EventHeader, rest: &'a [u8]) -> Option<(Option<Event>, &'a [u8])> {
    let len = usize::try_from(header.len).ok().filter(|len| len.is_multiple_of(8))?;
    let (payload, behind) = rest.split_at_checked(len)?;
    let event = match Kind::from_u16(header.kind).map(|kind| Event::decode(kind, payload)) {
        Some(Ok(event)) => Some(event),
        Some(Err(BadEvent::Short)) => return None,
        Some(Err(BadEvent::Check)) | None => None,
    };
    Some((event, behind))
}
