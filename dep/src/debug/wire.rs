//! The connection to gdb, with a buffer each way.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use gdbstub::conn::{Connection, ConnectionExt};

pub enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    fn set_nonblocking(&self, yes: bool) -> io::Result<()> {
        match self {
            Stream::Unix(stream) => stream.set_nonblocking(yes),
            Stream::Tcp(stream) => stream.set_nonblocking(yes),
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => Read::read(stream, buffer),
            Stream::Tcp(stream) => Read::read(stream, buffer),
        }
    }
}

pub struct Wire {
    stream: Stream,
    arrived: VecDeque<u8>,
    leaving: Vec<u8>,
}

impl Wire {
    pub fn new(stream: Stream) -> Wire {
        Wire { stream, arrived: VecDeque::new(), leaving: Vec::new() }
    }

    /// Waits for something.
    fn fill(&mut self) -> io::Result<()> {
        let mut buffer = [0; 4096];
        match self.stream.read(&mut buffer)? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            n => {
                self.arrived.extend(&buffer[..n]);
                Ok(())
            }
        }
    }

    /// Whether something has arrived, or nothing ever will again.
    pub fn has_news(&mut self) -> bool {
        !matches!(self.peek(), Ok(None))
    }
}

impl Connection for Wire {
    type Error = io::Error;

    fn write(&mut self, byte: u8) -> io::Result<()> {
        self.leaving.push(byte);
        Ok(())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.leaving.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let bytes = std::mem::take(&mut self.leaving);
        match &mut self.stream {
            Stream::Unix(stream) => Write::write_all(stream, &bytes),
            Stream::Tcp(stream) => Write::write_all(stream, &bytes),
        }
    }

    fn on_session_start(&mut self) -> io::Result<()> {
        match &self.stream {
            Stream::Unix(_) => Ok(()),
            Stream::Tcp(stream) => stream.set_nodelay(true),
        }
    }
}

impl ConnectionExt for Wire {
    fn read(&mut self) -> io::Result<u8> {
        loop {
            if let Some(byte) = self.arrived.pop_front() {
                return Ok(byte);
            }
            match self.fill() {
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                other => other?,
            }
        }
    }

    fn peek(&mut self) -> io::Result<Option<u8>> {
        if self.arrived.is_empty() {
            self.stream.set_nonblocking(true)?;
            let filled = self.fill();
            self.stream.set_nonblocking(false)?;
            match filled {
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                other => other?,
            }
        }
        Ok(self.arrived.front().copied())
    }
}
