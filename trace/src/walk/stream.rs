//! The control-flow stream of one chunk, and how far it has been read.

use abi::ids::StreamOff;

/// Bytes, and a place in them.
pub(super) struct Stream<'a> {
    bytes: &'a [u8],
    at: usize,
    sealed: bool,
}

impl<'a> Stream<'a> {
    /// `sealed`: the chunk is complete, and the stream has no end mark inside of it.
    pub fn new(bytes: &'a [u8], sealed: bool) -> Stream<'a> {
        Stream { bytes, at: 0, sealed }
    }

    /// How far it has been read.
    #[inline]
    pub fn at(&self) -> StreamOff {
        StreamOff(self.at as u64)
    }

    /// A place to go [back](Stream::back) to.
    #[inline]
    pub fn mark(&self) -> usize {
        self.at
    }

    #[inline]
    pub fn back(&mut self, mark: usize) {
        self.at = mark;
    }

    /// Passes over `bytes`, which may lie behind the end.
    #[inline]
    pub fn skip(&mut self, bytes: usize) {
        self.at += bytes;
    }

    /// What was not read yet.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// The next `N` bytes, if there are so many; they are not passed over.
    #[inline]
    pub fn peek<const N: usize>(&self) -> Option<&'a [u8; N]> {
        self.bytes.get(self.at..self.at + N).and_then(|bytes| bytes.first_chunk())
    }

    /// Takes the next `N` bytes, which belong to a record.
    #[inline]
    pub fn take<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        let bytes = self.peek().ok_or("the control-flow stream ends inside a record")?;
        self.at += N;
        Ok(*bytes)
    }

    /// Whether the stream may end here, where a zero is or nothing: in a sealed chunk only padding
    /// may follow.
    pub fn may_end(&self) -> Result<(), &'static str> {
        let rest = self.rest();
        match self.sealed && (rest.len() >= 8 || rest.iter().any(|&byte| byte != 0)) {
            true => Err("an end mark inside a sealed chunk"),
            false => Ok(()),
        }
    }

    /// Whether nothing has been written here.
    pub fn is_blank(&self) -> bool {
        self.rest().iter().take(2).all(|&byte| byte == 0)
    }
}
