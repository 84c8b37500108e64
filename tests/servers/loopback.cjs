// On which interface may a server that nobody here wrote listen? On loopback alone, at a port that it prints.
'use strict';
const net = require('node:net');
const listen = net.Server.prototype.listen;

net.Server.prototype.listen = function () {
  return listen.call(this, { host: '127.0.0.1', port: 0 }, () => {
    process.stdout.write(`port ${this.address().port}\n`);
    console.log = console.error = () => {}; // nobody reads what it tells of its requests
    process.stdin.on('end', () => process.exit(0)).resume(); // it ends with whoever started it
  });
};
