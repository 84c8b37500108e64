"""The catalogue of check codes, with explanations.

The only table of the codes of policy faults: `docs/policy-errors.md`, SARIF's rules and the tests read it. Codes of
other files (`sidecar.yaml`, `budgets.yaml`) begin with other letters and belong to their own readers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple, cast

Level = Literal["error", "warning", "note"]


class CodeMeaning(NamedTuple):
    """`about` in one line, `mend` in one or two sentences. A note is a warning of less weight, without effect yet."""

    about: str
    mend: str
    level: Level = "error"


_TABLE = """
P001: A file or folder cannot be read, or is larger than is read
  Put it there, make it readable, or split it. A pipe or a device is never opened.
P002: A file whose name says nothing
  Rename it to <kind>.csv, <kind>.<name>.csv, roles.csv or guardrails.csv, or take it out of the folder. An unknown
  file is an error so that a mistyped name is never a policy that silently does not apply.
P003: A YAML file that is not read
  It belongs to the top folder: move it there.
P004: No rule in any file
  An empty policy is a broken mount or a truncated file far more often than a wish: write at least one rule.
P005: A file that is not UTF-8
  Save it as UTF-8.
P007 warning: A file that an editor left behind
  Remove it: it is not read.
P008: The process that reads a large policy died, or took longer than two minutes
  Give the machine more memory, or split the policy. The old policy serves on.
P009: A link that leads out of the folder
  Put the file itself there. A fault quotes the line it is about, and a link would show the first faulty line of any
  file to a writer of the folder. Links inside the folder (Kubernetes' ..data) are followed.
P101: A row of unknown type
  A row begins with p, g or g2; fields are separated by commas.
P102: A row with too few or too many fields, or a quote that does not fit
  Write every column of the model, - for none. Quote a field that holds a comma or a double quote, as in RFC 4180.
P103: No subject, or one that this permission kind never asks
  user_to_nhi asks users, nhi_to_nhi asks NHIs, agent_to_tool and guardrails ask both. Roles are written role:<name>,
  all identified callers are *.
P104: An unknown action
  Write one of the actions, a pattern that some action fits, or use.
P105: An effect that is neither allow nor deny, or an allow row among guardrails
  Write it in lower case, with nothing behind it: a comment stands on a line of its own. A guardrail only denies: move
  an allow row into the file of its kind.
P106: No time
  Write an RFC 3339 time with a zone, such as 2027-03-31T00:00:00Z.
P107: No limit
  Write a number from 1 to 999999999, or - for none. A limit of 0 would be a deny row in disguise; a deny row has
  none.
P108: The same rule, or the same id, twice
  Take one away, or give it an id of its own.
P109: A #: line that says something unknown
  It holds key=value pairs (id owner reason shadow per created_at) and stands directly above its row.
P110: A character that may look like another, or like none, or a line that is too long
  Retype it: names are plain ASCII. Invisible and control characters are refused everywhere.
P111: A row in the wrong file
  p rows go into <kind>.csv, g and g2 rows into roles.csv.
P112: A row outside of what its folder may say
  Name what policy.scopes permits this folder, or ask who owns sidecar.yaml for a wider scope.
P113: No object, or one that this permission kind never asks
  Write tool:<server>/<tool>, prompt:<server>/<name>, resource:<server>/<uri>, nhi:<name> or set:<name>. One row, one
  object: put several into a set.
P114: A part of a rule that does not fit the rule
  A row with part_of stands below another row of that rule, and differs from it in subject and object only.
P115: A deny row under a model that knows no deny
  Take the row away, or give the model the effect some-allow-and-no-deny.
P116: No domain
  Write the namespace of an issuer exactly, or - for principals without one.
P120 warning: A deny row that ends
  What it forbids will be allowed then. Take the expiry away, or let the allow row end instead.
P121 warning: An upstream that is not configured
  Correct the name, or add it to upstreams.
P122 warning: A resource in another spelling than calls are decided in
  The rule is read as told, and holds for every spelling of the URI. Write it so: scheme and host in lower case,
  nothing encoded that need not be, no default port, file:///… for local files.
P123 warning: A resource that no call can name, or capitals that fit no host
  Calls whose URI has dot segments, encoded slashes, user information or the like are refused before rules are asked.
  Hosts are decided in lower case: a pattern such as *Secret* fits paths only, so write another row for *secret*.
P201: A line of a model that Casbin's form does not have
  Keep to the five sections and their keys.
P202: A definition with other names than ours
  A request, a row and a role have fixed fields; columns may stand in any order.
P203: An effect that allows by default, or by the order of rows
  Write e = some(where (p.eft == allow)) && !some(where (p.eft == deny)).
P204: Something in a matcher that is not one of our functions over our names
  Use && || ! == != and who glob globs live holds g g2 over the fields of r and p.
P205: A matcher that would let an expired row, a failed condition or any request match
  Keep live(p.expires_at, r.ctx) and holds(p.when, p.eft, r.ctx) in the conjunction, and read r.sub, r.obj and r.act.
P206 warning: A matcher for which every question walks all rows
  Compare a field of the request with one column, as the shipped models do: then rows are looked up.
P207 warning: A part of a matcher that pycasbin must answer
  It is answered rightly and slowly. Write it with == != in && || ! and our functions.
P208: A model that cannot be exported
  Plain pycasbin would need more than rows and roles for domains and priority: export another model.
P301: Roles or sets in a circle
  Take one of the rows of the circle away.
P302: Roles or sets nested too deeply
  Put members nearer to the role that rules name: eight levels.
P303: A name in roles.csv that is none, or not exact
  Write user:…, nhi:… or role:… into roles, objects into sets; wildcards belong into rules.
P304 warning: The same g or g2 row twice
  Take one away.
P305 warning: A rule on a set that nothing is in
  Correct the name, or fill the set with g2 rows.
P401: A condition that does not compile
  Mend the CEL expression at the place that is marked.
P402: A condition that gives no Boolean
  Compare: size(args.items) < 10.
P403: A field that does not exist
  principal and origin have name, kind, id, scopes and roles; call has server, tool, action and meta.
P404: has_role of something that the caller wrote
  Ask principal, origin or one of chain.
P405 warning: An allow row that trusts call.meta
  The caller writes it, and can claim anything. Use the chain, roles or scopes.
P501: A value of the wrong type
  Write a text, a number, a list or a map, as the hint says.
P502: An unknown key
  Write the key that was meant, or take it away.
P503: A key is missing
  Write it.
P504: Another version of the format
  Write version: 1.
P505: A value that is not one of the words
  Write one of them.
P506: An empty file, or an empty list
  Fill it, or remove it.
P507: A capability without a dot
  Write <server>.<tool>; the first dot splits, * matches any run.
P508: The same thing said twice
  Take one away.
P509: A part of another rule than the one above
  Write it below the rule that it is a part of.
P510: A rule that stands for too many rows
  Use a role for its subjects, or a set for its objects.
P511 warning: A capability that is mapped to nothing
  It grants the tool of that name alone. Say under capabilities: which tools it stands for.
P601 warning: A rule that can never match
  Its subject or object is never what this permission kind asks. Move the rule to the kind that asks it, or take it
  away.
P602 warning: A rule none of whose actions is ever asked of its object
  Tools are asked tools/call, prompts prompts/get, resources resources/read, agents the message and task actions and
  delegate.
P603 note: An action that is never asked of the rule's object
  Take it away, or write use.
P604 warning: A role without members
  Give it members in roles.csv, or name the role that was meant. Roles of tokens are role:<namespace>/<value>.
P605 warning: A condition that always comes out the same
  Take the condition away, or the rule. On a deny row, what always fails always denies.
P606 warning: A condition on arguments where there are none
  Only tool calls, prompts and messages carry arguments; a delegation and a resource have none. Ask call, origin or
  principal instead.
P607 warning: A pattern or a set's object on no upstream that exists
  Correct the server's name, or add it to upstreams.
P608 warning: An entry of budgets.yaml that counts nothing
  Correct the server's or role's name: as it stands, its limit bounds no call.
P609 warning: A rule or a set's object for something that its server does not have
  Correct the name, or take it away: by the catalogue that was given, nothing there is called so, and the rule grants
  or denies nothing.
P611 warning: An allow rule that a deny rule covers
  Everything that it allows is denied: take one of the two away, or narrow the deny.
P612 note: An allow rule that adds nothing to another one
  Take the narrower one away.
P613 warning: A limit that can never be reached
  A tighter one always applies to the same calls: lower this one, or take it away.
P614 note: Two limits that count the same calls
  Each matching allow row's limit counts: the first that is spent refuses, whatever the other has left. If the wider
  row was meant to give more, raise or remove the narrower limit.
P621 warning: A rule that has expired
  Take it away, or renew it in a reviewed change.
P622 warning: A rule that expires soon
  Renew it in a reviewed change, or let it end.
P623 warning: A shadow rule that is older than 30 days
  Read what it would have denied or allowed in the audit, then enforce it or take it away.
P631 note: A role that no rule and no budget uses
  Take its rows away, or use it.
P632 note: A set that no rule uses
  Take its rows away, or use it.
P633 warning: A file without a row
  Fill it, or remove it: it may have been truncated.
P634 warning: Two names that look alike
  If one is a slip of the pen, correct it; if both exist, rename one: reviewers will not tell them apart.
P635 note: Two rule ids that look alike
  Rename one: both stand in audit and metrics.
P641 warning: A deny rule that reads an argument without has()
  A call that leaves the argument out is denied too. If that is not meant, write has(args.x) && args.x == ….
P642 warning: A deny rule that a missing claim switches off
  A token without the claim is not denied. Turn it round (deny unless the role is there), or make the claim required
  in roles_from.
P643 warning: An order between something and a number in quotes
  Text is compared letter by letter, so '10' < '9', and a number never: take the quotes away.
P651 warning: An allow rule for all callers
  Name a role, or the callers, or add a condition.
P652 warning: An allow rule on everything
  Name the servers, or a set, or add a condition.
P653 note: An allow rule for callers without a credential
  It is obeyed only on upstreams that permit anonymous callers; be sure that it is meant.
P661 note: A rule without an owner (only with --strict)
  Write owner=… into its #: line.
"""
"""Each entry is `code level: about`, and below it how the fault is mended. The level `error` is left out."""


def _read(table: str) -> Mapping[str, CodeMeaning]:
    entries = re.findall(r"^(P\d{3})(?: (warning|note))?: (.*)\n((?:  .*\n)+)", table, re.MULTILINE)
    return {
        code: CodeMeaning(about, " ".join(mend.split()), cast("Level", level or "error"))
        for code, level, about, mend in entries
    }


CODES = _read(_TABLE)
